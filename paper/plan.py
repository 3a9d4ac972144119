"""Which grids the paper's figures need: the same files that `./heliograph sweep` takes, whole or in the quick form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.schema.source import read
from inputs import yaml_file
from sweeps.axes import SweepError, parse_axes
from sweeps.cell import Cell
from sweeps.grid import cells_of

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments" / "paper"

#: Where the files keep their traces, relative to themselves; what follows is looked up in the folder of the traces.
_TRACES = "../../traces/"

#: The quick form: three paired windows of 90 s. Its intervals are wide, and a p99 rests on a few requests.
QUICK = ("workload.window_s=90", "workload.warmup_s=10", "seeds=[1,2,3]")
#: A window of `fig3a` is a day with one request a minute, so it has a quick form of its own.
QUICK_IDLE = ("workload.window_s=40000", "seeds=[1,2,3]")

_LOADS = "workload.tenants.*.load=0.6,0.75"
_BANDWIDTHS = "cluster.link_gbps=400,288.888889,200,133.333333"
_HALF_AND_THIRD = "cluster.link_gbps=200,133.333333"


@dataclass(frozen=True, slots=True)
class PaperGrid:
    """A grid: a file, its axes and overrides, whole and quick (None: it is left out), and the fabrics that are looked
    at (all)."""

    name: str
    figure: str
    file: str
    over: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    fabrics: tuple[str, ...] = ()
    quick_over: tuple[str, ...] | None = ()
    quick_sets: tuple[str, ...] = QUICK
    quick_fabrics: tuple[str, ...] = ()

    @property
    def needs_traces(self) -> bool:
        """Whether its tenants replay the public traces."""
        tenants = read(EXPERIMENTS / f"{self.file}.yaml").data["workload"]["tenants"]
        return any(str(tenant.get("path", "")).startswith(_TRACES) for tenant in tenants)


_GAIN = ("eps-2to1-ecmp", "eps-3to1-ecmp", "ocs-25ms")

#: In the order they are computed: `fig4c` has the arrivals of `fig3b-128-25`, which workers remember.
PARTS = (
    PaperGrid("fig3a", "3a", "fig3a", over=(_BANDWIDTHS,), quick_over=(_BANDWIDTHS,), quick_sets=QUICK_IDLE),
    PaperGrid(
        "fig3a-fp8",
        "3a",
        "fig3a",
        over=(_HALF_AND_THIRD,),
        sets=("model.kv_dtype=fp8",),
        quick_over=(_HALF_AND_THIRD,),
        quick_sets=QUICK_IDLE,
    ),
    PaperGrid(
        "fig3a-agentx",
        "3a",
        "fig3a",
        over=(_HALF_AND_THIRD,),
        sets=("workload.tenants.0.profile=agentx",),
        quick_over=(_HALF_AND_THIRD,),
        quick_sets=QUICK_IDLE,
    ),
    PaperGrid(
        "fig3b-128-25",
        "3b",
        "fig3b-128-25",
        over=("transfer=pull,layerwise", _LOADS),
        quick_over=("transfer=pull,layerwise", "workload.tenants.*.load=0.6"),
    ),
    PaperGrid(
        "fig4c",
        "4c",
        "fig4c",
        quick_fabrics=(
            "eps-1to1-srpt",
            "reuse-25ms",
            "reuse-100ms",
            "no-reuse-50ms",
            "by-load-25ms",
            "no-reservation-0.01ms",
        ),
    ),
    PaperGrid("fig3b-128-50", "3b", "fig3b-128-50", over=("transfer=pull,layerwise", _LOADS), quick_over=None),
    PaperGrid(
        "fig3b-256-25",
        "3b",
        "fig3b-256-25",
        over=("transfer=pull", _LOADS),
        fabrics=_GAIN,
        quick_over=("transfer=pull", "workload.tenants.*.load=0.6"),
        quick_fabrics=_GAIN,
    ),
    PaperGrid("fig3b-256-50", "3b", "fig3b-256-50", over=("transfer=pull", _LOADS), fabrics=_GAIN, quick_over=None),
    PaperGrid(
        "migrated-25",
        "migrated",
        "migrated-share",
        over=("workload.tenants.0.migrate=0.5", _LOADS),
        fabrics=_GAIN,
        quick_over=("workload.tenants.0.migrate=0.5", "workload.tenants.*.load=0.6"),
        quick_fabrics=_GAIN,
    ),
    PaperGrid("migrated-50", "migrated", "fig3b-128-50", over=("workload.tenants.0.migrate=0.5", _LOADS), fabrics=_GAIN,
         quick_over=None),
    PaperGrid("affinity", "migrated", "affinity"),
    PaperGrid(
        "together-128",
        "3b",
        "fig3b-128-25",
        over=("workload.placement=together",),
        fabrics=_GAIN,
        quick_over=None,
    ),
    PaperGrid(
        "together-256",
        "3b",
        "fig3b-256-25",
        over=("workload.placement=together",),
        fabrics=_GAIN,
        quick_over=None,
    ),
    PaperGrid("fig4a", "4a", "fig4a", quick_sets=()),
    PaperGrid(
        "fig4b",
        "4b",
        "fig4b",
        over=("transfer=layerwise,pull", "prefill.median_error=0,0.046,0.1,0.15"),
        quick_over=("transfer=layerwise", "prefill.median_error=0,0.046,0.1"),
    ),
)  # fmt: skip


def parts_of(chosen: Sequence[str], *, quick: bool) -> list[PaperGrid]:
    """The grids of these figures (all without any)."""
    return [part for part in PARTS if (not chosen or part.figure in chosen) and not (quick and part.quick_over is None)]


def cells(part: PaperGrid, traces: Path, *, quick: bool) -> list[Cell]:
    """The cells of a part; only figures come back of each. Raises SpecError and SweepError."""
    path = EXPERIMENTS / f"{part.file}.yaml"
    sets = [*part.sets, *(part.quick_sets if quick else ()), *_trace_paths(path, traces)]
    found = cells_of(path, parse_axes((part.quick_over or ()) if quick else part.over), sets=sets, keep="figures")
    fabrics = (quick and part.quick_fabrics) or part.fabrics
    return [cell for cell in found if not fabrics or cell.fabric in fabrics]


def _trace_paths(path: Path, traces: Path) -> list[str]:
    """The file's traces as they lie in `traces`."""
    tenants = read(path).data["workload"]["tenants"]
    return [
        f"workload.tenants.{i}.path={traces / tenant['path'].removeprefix(_TRACES)}"
        for i, tenant in enumerate(tenants)
        if str(tenant.get("path", "")).startswith(_TRACES)
    ]


def find_traces(given: Path | None) -> Path:
    """The folder with `azure/` and `mooncake/`: the one given, `$HELIOGRAPH_TRACES`, `traces/` of the checkout or
    `shared/data` beside it. Raises SweepError where the traces are not there."""
    named = given or (Path(os.environ["HELIOGRAPH_TRACES"]) if os.environ.get("HELIOGRAPH_TRACES") else None)
    places = [named] if named else [ROOT / "traces", ROOT.parent / "shared" / "data"]
    wanted = _wanted()
    for place in places:
        if all((place / name).is_file() for name in wanted):
            return place.resolve()
    tried = ", ".join(str(place) for place in places)
    missing = [name for name in wanted if not (places[-1] / name).is_file()]
    raise SweepError(
        f"no traces in {tried}: missing {', '.join(missing)}; docs/measurements/paper.md says where they are "
        "published, and --traces DIR says where you put them"
    )


def _wanted() -> list[str]:
    tenants = read(EXPERIMENTS / "fig3b-128-25.yaml").data["workload"]["tenants"]
    return [tenant["path"].removeprefix(_TRACES) for tenant in tenants if "path" in tenant]


def form(by_part: Mapping[str, Sequence[Cell]]) -> str:
    """How many paired windows of how many seconds stand behind which figures, from the cells themselves."""
    figures: dict[tuple[int, float], list[str]] = {}
    for part in PARTS:
        if not (found := by_part.get(part.name)):
            continue
        windows = len({cell.seed for cell in found})
        window_s = float(yaml_file.parse(found[0].config, "a cell")["workload"]["window_s"])
        of = figures.setdefault((windows, window_s), [])
        if part.figure not in of:
            of.append(part.figure)
    said = [
        f"{', '.join(sorted(of))}: " + (f"{n} paired windows" if n > 1 else "one window") + f" of {window_s:,g} s"
        for (n, window_s), of in figures.items()
    ]
    return "; ".join(said) or "closed form only"
