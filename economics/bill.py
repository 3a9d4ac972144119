"""The bill of a fabric: how many NICs, modules, switch ports and circuit ports join so many GPUs.

Counted is the network behind the 400G NIC of each GPU; the host network is the same in both designs and left out.
Not counted: fibres, racks, cooling, operation, spares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from economics.ranges import OutOfRange, whole_in_range

SWITCH_PORTS = 128  # a 51.2 Tbit/s packet switch at 400 Gbit/s a port
GPUS_PER_NODE = 8
FIBRE_PAIRS = {"fr4": 1, "dr4": 4}  # per 400G link: four wavelengths on one pair; four parallel pairs (IEEE 802.3)
PLANE_PORTS = (192, 384)  # port counts of the mechanical circuit switches the source names
CABLINGS = ("full", "needed")


@dataclass(frozen=True, slots=True)
class Bill:
    """Parts of one fabric, totals over all GPUs. Counts are fractions where ports are priced one by one."""

    gpus: int
    nics: int
    modules_400g: Fraction = Fraction(0)
    modules_fr4: int = 0
    switch_ports: Fraction = Fraction(0)
    ocs_ports: int = 0
    control_gpus: int = 0  # GPUs that need a share of a control network
    tiers: int = 1
    switches: int | None = None  # packet switches, whole boxes only
    ocs_switches: int | None = None  # circuit switches, whole boxes only


@dataclass(frozen=True, slots=True)
class PacketDesign:
    """A leaf-spine of 51.2T packet switches with `uplinks` per `rack_gpus` GPUs; oversubscribed at the leaf only."""

    uplinks: int = 16
    rack_gpus: int = 32

    def __post_init__(self) -> None:
        whole_in_range("rack GPUs", self.rack_gpus, 1)
        whole_in_range("uplinks per rack", self.uplinks, 1, self.rack_gpus, why="1:1 needs no more than one per GPU")

    @property
    def uplinks_per_gpu(self) -> Fraction:
        return Fraction(self.uplinks, self.rack_gpus)

    @property
    def oversubscription(self) -> float:
        return self.rack_gpus / self.uplinks

    @property
    def nominal(self) -> int | None:
        """n where one calls this n:1: exactly, or within 0.1 with the whole uplinks nearest to it (2.91 for 3:1)."""
        n = round(self.oversubscription)
        return n if abs(self.oversubscription - n) < 0.1 and self.uplinks == round(self.rack_gpus / n) else None

    @property
    def key(self) -> str:
        return f"eps-{self.nominal}to1" if self.nominal else f"eps-{self.uplinks}of{self.rack_gpus}"

    @property
    def label(self) -> str:
        if self.oversubscription == self.nominal:
            return f"EPS {self.nominal}:1"
        if self.nominal:
            return f"EPS {self.nominal}:1 ({self.oversubscription:.2f}:1)"
        return f"EPS {self.oversubscription:.2f}:1"

    @property
    def leaf_gpus(self) -> int:
        """GPUs on a fully used leaf: the most that leave it enough uplinks, floor(128 / (1 + u))."""
        return math.floor(SWITCH_PORTS / (1 + self.uplinks_per_gpu))

    def reach(self, tiers: int) -> int:
        """Most GPUs on one, two or three tiers: 128; 128 leaves; 128 pods of 64 leaves (a k-ary fat tree, k = 128)."""
        leaves = {2: SWITCH_PORTS, 3: SWITCH_PORTS * SWITCH_PORTS // 2}
        return SWITCH_PORTS if tiers == 1 else leaves[tiers] * self.leaf_gpus

    def tiers(self, gpus: int) -> int:
        """The fewest tiers that reach `gpus`. Raises `OutOfRange` beyond three."""
        for tiers in (1, 2, 3):
            if gpus <= self.reach(tiers):
                return tiers
        raise OutOfRange(
            f"{gpus:,} GPUs are beyond three tiers of {SWITCH_PORTS}-port switches, which reach {self.reach(3):,} "
            f"on {self.label}; ask for at most that many"
        )

    def bill(self, gpus: int, *, whole_switches: bool = False, cabling: str = "full") -> Bill:
        """Per port: NIC + 2 modules + leaf port + (tiers - 1) x u x (2 ports + 2 modules) per GPU (PAPER-TARGETS.md).

        `whole_switches` counts boxes of 128 ports instead. `cabling` "full": every leaf is the same and all its uplinks
        are cabled; "needed": GPUs x u uplinks in all are cabled. Both on the fewest leaves.
        """
        whole_gpus(gpus)
        if cabling not in CABLINGS:
            raise OutOfRange(f"leaf cabling {cabling!r} is not one of {', '.join(CABLINGS)}")
        tiers = self.tiers(gpus)
        if not whole_switches:
            links = (tiers - 1) * self.uplinks_per_gpu * gpus
            return Bill(gpus, nics=gpus, modules_400g=2 * gpus + 2 * links, switch_ports=gpus + 2 * links, tiers=tiers)
        switches, box_links = self._boxes(gpus, tiers, cabling)
        return Bill(
            gpus,
            nics=gpus,
            modules_400g=Fraction(2 * gpus + 2 * box_links),
            switch_ports=Fraction(switches * SWITCH_PORTS),
            tiers=tiers,
            switches=switches,
        )

    def _boxes(self, gpus: int, tiers: int, cabling: str) -> tuple[int, int]:
        """Switches, and links between them."""
        if tiers == 1:
            return 1, 0
        leaves = math.ceil(gpus / self.leaf_gpus)
        uplinks = (
            leaves * (SWITCH_PORTS - self.leaf_gpus) if cabling == "full" else math.ceil(gpus * self.uplinks_per_gpu)
        )
        if tiers == 2:
            return leaves + math.ceil(uplinks / SWITCH_PORTS), uplinks
        # An aggregation switch has half its ports down and half up, so it passes on what it takes in.
        aggregations = math.ceil(uplinks / (SWITCH_PORTS // 2))
        core_links = aggregations * SWITCH_PORTS // 2 if cabling == "full" else uplinks
        return leaves + aggregations + math.ceil(core_links / SWITCH_PORTS), uplinks + core_links


@dataclass(frozen=True, slots=True)
class CircuitDesign:
    """One stage of optical circuit switches: each plane joins one GPU position of every node.

    `optics`: "fr4" (one fibre pair per 400G link) or "dr4" (four). `ports_per_pair`: 1 when one circuit port carries
    both fibres of a pair, 2 when each fibre takes its own.
    """

    optics: str = "fr4"
    ports_per_pair: int = 1
    plane_ports: int = 384
    gpus_per_node: int = GPUS_PER_NODE

    def __post_init__(self) -> None:
        if self.optics not in FIBRE_PAIRS:
            raise OutOfRange(f"optics {self.optics!r} is not one of {', '.join(FIBRE_PAIRS)}")
        if self.plane_ports not in PLANE_PORTS:
            raise OutOfRange(f"plane ports = {self.plane_ports!r} is not one of {', '.join(map(str, PLANE_PORTS))}")
        whole_in_range("OCS ports per fibre pair", self.ports_per_pair, 1, 2, why="a pair has two fibres")
        whole_in_range("GPUs per node", self.gpus_per_node, 1)

    @property
    def ports_per_gpu(self) -> int:
        return FIBRE_PAIRS[self.optics] * self.ports_per_pair

    @property
    def key(self) -> str:
        return f"ocs-{self.optics}-{self.ports_per_pair}port"

    @property
    def label(self) -> str:
        return f"OCS {self.optics.upper()}, {self.ports_per_pair} port{'s' if self.ports_per_pair > 1 else ''}/pair"

    @property
    def planes(self) -> int:
        """Planes in all: `ports_per_gpu` switches for each GPU position, 8 for FR4 with one port per pair."""
        return self.gpus_per_node * self.ports_per_gpu

    @property
    def reach(self) -> int:
        """Most GPUs of one stage: one node per plane port, so 8 x 384 = 3,072."""
        return self.gpus_per_node * self.plane_ports

    def bill(self, gpus: int, *, whole_switches: bool = False) -> Bill:
        """NIC + one module + pairs x ports per pair + a share of the control network, per GPU (PAPER-TARGETS.md).

        `whole_switches` counts the fewest boxes of `plane_ports`; a box may hold several planes, never part of one.
        Raises `OutOfRange` beyond one stage.
        """
        whole_gpus(gpus, self.gpus_per_node)
        if gpus > self.reach:
            bigger = f" or {max(PLANE_PORTS)}-port planes" if self.plane_ports < max(PLANE_PORTS) else ""
            raise OutOfRange(
                f"{gpus:,} GPUs are beyond one OCS stage: a plane joins one GPU position of every "
                f"{self.gpus_per_node}-GPU node, so {self.plane_ports} ports reach {self.plane_ports} nodes = "
                f"{self.reach:,} GPUs, and a second stage would lose the light of a second switch; "
                f"ask for at most {self.reach:,} GPUs{bigger}"
            )
        ports = gpus * self.ports_per_gpu
        boxes = math.ceil(self.planes / (self.plane_ports // (gpus // self.gpus_per_node))) if whole_switches else None
        fr4 = self.optics == "fr4"
        return Bill(
            gpus,
            nics=gpus,
            modules_400g=Fraction(0 if fr4 else gpus),
            modules_fr4=gpus if fr4 else 0,
            ocs_ports=ports if boxes is None else boxes * self.plane_ports,
            control_gpus=gpus,
            ocs_switches=boxes,
        )


Fabric = PacketDesign | CircuitDesign


def whole_gpus(gpus: int, gpus_per_node: int = GPUS_PER_NODE) -> int:
    """`gpus` when it is a positive number of whole nodes; raises `OutOfRange` otherwise."""
    whole_in_range("GPUs", gpus, gpus_per_node)
    if gpus % gpus_per_node:
        near = math.ceil(gpus / gpus_per_node) * gpus_per_node
        raise OutOfRange(
            f"GPUs = {gpus:,} is not a whole number of {gpus_per_node}-GPU nodes; the next one is {near:,}"
        )
    return gpus
