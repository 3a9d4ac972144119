"""A topology made real: namespaces, links, addresses, qdiscs and circuit switches, in a few batches instead of a
process for each.

    1. namespaces             one `ip -batch`
    2. sysctls                setns and write, before links: a device copies its namespace's defaults when it is made
    3. links                  one `ip -batch`, every veth pair directly between its namespaces
    4. addresses and qdiscs   one `ip -batch` and one `tc -batch` inside each namespace, a few namespaces at a time
    5. circuit switches       the run's own Open vSwitch, all bridges in one transaction

All circuit switches live in namespace `ovs0` (and `ovs1`, .., where several share the planes), each joined to the
controller's node `ctl` by a link of its own for OpenFlow.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from emulation.linux.ledger import RunLedger
from emulation.linux.netns import batch, changed_sysctls, in_each, write_sysctls
from emulation.network.links import LinkEnd, creation, differences, link_ends, read_counters
from emulation.network.ovs import OPENFLOW_PORT, Bridge
from emulation.network.switches import CircuitSwitches
from topologies.nodes import ip_batch
from topologies.wiring import COMMON_SYSCTLS, WiredTopo

CONTROLLER_NODE = "ctl"
# The controller's end of every OpenFlow link; the switches' are the addresses after it.
OPENFLOW_NETWORK, CONTROLLER_HOST = "10.254.0", 1


class TestbedError(RuntimeError):
    """The testbed is not what the topology says: lists what differs."""

    __test__ = False


class Testbed:
    """Realises a `WiredTopo` (such as `Cluster`) under a run's ledger.

    run: the open ledger of the run. datapath: of the circuit switches, "netdev" or "system". switch_daemons: how many
    ovs-vswitchd share the planes. link_delay_s: propagation delay each way of links with a goodput, wall seconds.
    Use as a context manager, or call `build` and `close`; when `build` raises,
    everything it made is gone already. Call from the main thread: the switches die with the thread that started them.
    """

    __test__ = False

    def __init__(
        self,
        topo: WiredTopo,
        run: RunLedger,
        datapath: str = "netdev",
        *,
        switch_daemons: int = 1,
        link_delay_s: float = 0.0,
    ) -> None:
        self.topo, self._run, self._datapath = topo, run, datapath
        self._switches = topo.switches()
        nodes = topo.hosts()
        self._namespaces = {node: f"{run.prefix}-{node}" for node in nodes}
        daemons = [f"ovs{number}" for number in range(min(switch_daemons, len(self._switches)))]
        #: Open vSwitch -> its namespace.
        self._daemons = {daemon: f"{run.prefix}-{daemon}" for daemon in daemons}
        self._namespaces |= {
            switch: self._daemons[daemons[number % len(daemons)]] for number, switch in enumerate(self._switches)
        }
        self._links = link_ends(topo, self._namespaces, link_delay_s)
        self._ends: dict[str, list[LinkEnd]] = defaultdict(list)
        for pair in self._links:
            for end in pair:
                self._ends[end.namespace].append(end)
        self.ovs: CircuitSwitches | None = None
        self._built = False

    @property
    def datapath(self) -> str:
        """Of the circuit switches: "netdev" or "system"."""
        return self._datapath

    @property
    def openflow_address(self) -> str:
        """The address in `ctl` where the controller must listen for the switches (port 6653)."""
        return f"{OPENFLOW_NETWORK}.{CONTROLLER_HOST}"

    @property
    def unixctls(self) -> dict[str, str]:
        """Bridge -> control socket of the ovs-vswitchd that holds it, for flow-cache purges. Empty without circuits."""
        return {} if self.ovs is None else {bridge: str(path) for bridge, path in self.ovs.unixctls.items()}

    @property
    def _controller(self) -> str:
        return f"tcp:{self.openflow_address}:{OPENFLOW_PORT}"

    def connect_controller(self) -> None:
        """Point the switches at the controller, which listens by now; for testbeds built with
        controller_listens=False."""
        if self.ovs is not None:
            self.ovs.connect(self._controller)

    def namespace(self, node: str) -> str:
        """Name of the namespace a node of the topology lives in. Raises KeyError when there is no such node."""
        return self._namespaces[node]

    def build(self, *, controller_listens: bool = True) -> Testbed:
        """Make everything and check it. Raises what went wrong after removing what was made.

        controller_listens: False leaves the switches without a controller until `connect_controller`: a switch that
        finds nobody listening waits a second before it tries again.
        """
        try:
            self._make(controller_listens)
            self.verify()
        except BaseException:
            self.close()
            raise
        self._built = True
        return self

    def close(self) -> None:
        """End the switches and remove every namespace (their links go with them). May be called again."""
        if self.ovs is not None:
            self.ovs.stop()
            self.ovs = None
        self._run.remove_namespaces(list(dict.fromkeys(self._namespaces.values())))
        self._built = False

    def __enter__(self) -> Testbed:
        return self if self._built else self.build()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, connect: bool) -> None:
        nodes = {namespace: node for node, namespace in self._namespaces.items()}
        if self._switches and CONTROLLER_NODE not in self._namespaces:
            raise TestbedError(
                f"the topology has circuit switches but no node {CONTROLLER_NODE!r} for their controller"
            )
        self._run.namespaces(list(nodes))
        in_each(list(nodes), lambda namespace: write_sysctls(self._sysctls(nodes[namespace])))
        batch("ip", self._link_text(), where="the root namespace")
        in_each(list(nodes), lambda namespace: self._configure(nodes[namespace], namespace))
        if self._switches:
            self.ovs = CircuitSwitches(self._run, self._daemons, self._bridges(), self._datapath)
            self.ovs.start(self._controller if connect else None)

    def _sysctls(self, node: str) -> dict[str, str]:
        return COMMON_SYSCTLS if self.topo.isSwitch(node) else self.topo.nodeInfo(node)["sysctls"]

    def _link_text(self) -> str:
        text = "".join(creation(first, second) for first, second in self._links)
        for number, namespace in enumerate(self._daemons.values()):
            controller = self._namespaces[CONTROLLER_NODE]
            text += (
                f"link add name openflow{number} netns {controller} type veth peer name openflow netns {namespace}\n"
            )
        return text

    def _configure(self, node: str, namespace: str) -> None:
        """Runs inside the namespace."""
        ends = self._ends[namespace]
        text = "".join(f"link set {end.interface} up\n" for end in ends)
        if self.topo.isSwitch(node):
            number = list(self._daemons.values()).index(namespace)
            text += "link set lo up\n" + _openflow_text("openflow", CONTROLLER_HOST + 1 + number, CONTROLLER_HOST)
        else:
            info = self.topo.nodeInfo(node)
            text += ip_batch(info["addresses"], info["routes"], info["neighbours"])
            if node == CONTROLLER_NODE:
                for number in range(len(self._daemons)):
                    text += _openflow_text(f"openflow{number}", CONTROLLER_HOST, CONTROLLER_HOST + 1 + number)
        batch("ip", text, where=namespace)
        shaping = [line for end in ends if end.shape for line in end.shape.commands(end.interface)]
        batch("tc", "".join(f"{line}\n" for line in shaping), where=namespace)

    def _bridges(self) -> list[Bridge]:
        bridges = []
        for switch in self._switches:
            info = self.topo.nodeInfo(switch)
            numbers = {peer: number for number, (peer, _) in self.topo.ports[switch].items()}
            ends = [end for end in self._ends[self._namespaces[switch]] if end.node == switch]
            ports = {end.interface: numbers[end.peer] for end in ends}
            bridges.append(Bridge(switch, int(info["dpid"], 16), ports))
        return bridges

    def nodes(self) -> dict[str, str]:
        """Node -> namespace, of every node; circuit switches share one."""
        return dict(self._namespaces)

    def ends(self) -> list[LinkEnd]:
        """Both ends of every link."""
        return [end for pair in self._links for end in pair]

    def counters(self) -> list[dict[str, Any]]:
        """Rows of links.csv, one for each end of each link, as counted since the build."""
        namespaces = [namespace for namespace, ends in self._ends.items() if ends]
        return [row for rows in in_each(namespaces, lambda name: read_counters(self._ends[name])) for row in rows]

    def verify(self) -> None:
        """Read everything back: qdiscs, rates, queue limits, GSO sizes, links up, sysctls, switches alive. Raises
        TestbedError with what differs."""
        namespaces = [namespace for namespace, ends in self._ends.items() if ends]
        wrong = [line for lines in in_each(namespaces, lambda name: differences(self._ends[name])) for line in lines]
        of_namespace = {namespace: node for node, namespace in self._namespaces.items()}
        sysctls = in_each(list(of_namespace), lambda name: changed_sysctls(self._sysctls(of_namespace[name])))
        for node, lines in zip(of_namespace.values(), sysctls, strict=True):
            wrong += [f"{node}: {line}" for line in lines]
        if wrong:
            shown = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
            raise TestbedError(f"the kernel does not hold what was asked for: {shown}")
        if self.ovs is not None:
            self.ovs.check_alive()


def _openflow_text(interface: str, own: int, other: int) -> str:
    """`ip -batch` text for one end of a link between controller and switches."""
    addresses = f"{OPENFLOW_NETWORK}.{own} peer {OPENFLOW_NETWORK}.{other}/32"
    return f"link set {interface} up\naddress add {addresses} dev {interface}\n"
