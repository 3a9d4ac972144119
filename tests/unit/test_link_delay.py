"""A link's propagation delay: where it goes in tc, what holds it, and where it is refused before anything is built."""

import itertools

import pytest
from typer.testing import CliRunner

import cli
from emulation.doctor import plan_checks
from emulation.network.links import link_ends
from emulation.network.shaping import Shape, ShapingError
from emulation.plan.fabric_plan import FabricPlan
from experiments.schema.spec import SpecError, load

DEMO = "experiments/demo.yaml"
DRR = ("drr", 0xF)


def held(shape: Shape) -> tuple[list[dict], dict[str, float]]:
    """Qdiscs and ceilings as tc shows them once it has done what `shape` says."""
    qdiscs, ceilings = [], {}
    for words in (line.split() for line in shape.commands("gpu0")):
        value = dict(itertools.pairwise(words))
        if words[0] == "class":
            ceilings[value["classid"]] = float(shape.wire_bps)
        elif words[0] == "qdisc":
            kind = words[words.index("handle") + 2]
            options: dict = {"limit": int(value["limit"].rstrip("b"))} if "limit" in value else {}
            if kind == "netem":
                options["delay"] = {"delay": int(value["delay"].removesuffix("us")) / 1e6, "jitter": 0}
            qdiscs.append({"kind": kind, "root": "root" in words, "options": options})
    return qdiscs, ceilings


def test_without_a_delay_nothing_but_the_queue_is_asked_for() -> None:
    assert Shape(36e6, delay_s=0.0).commands("gpu0") == Shape(36e6).commands("gpu0")
    assert "netem" not in " ".join(Shape(36e6, *DRR).commands("gpu0"))


@pytest.mark.parametrize(("queue", "leaves"), [(("fifo", 0), 1), (DRR, 16)])
def test_each_queue_stands_behind_a_delay_of_its_own_and_keeps_its_limit(queue: tuple[str, int], leaves: int) -> None:
    shape = Shape(36e6, *queue, delay_s=50e-6)
    words = [line.split() for line in shape.commands("gpu0")]
    delays = {line[line.index("handle") + 1]: line for line in words if "netem" in line}
    queues = [line for line in words if "bfifo" in line]
    assert len(delays) == len(queues) == leaves
    for line in queues:
        assert line[line.index("parent") + 1].removesuffix("1") in delays  # its parent is a delay's one class
        assert line[-1] == f"{shape.queue_bytes}b"
    assert all(line[line.index("delay") + 1] == "50us" for line in delays.values())
    handles = [line[line.index("handle") + 1] for line in words if "handle" in line]
    assert len(handles) == len(set(handles))


def test_a_delay_holds_more_packets_than_its_link_could_send_meanwhile() -> None:
    shape = Shape(10e9, delay_s=0.5)
    line = next(line.split() for line in shape.commands("gpu0") if "netem" in line)
    assert int(line[line.index("limit") + 1]) > shape.wire_bps / 8 * 0.5 / 64


@pytest.mark.parametrize("queue", [("fifo", 0), DRR])
def test_a_delay_that_is_gone_or_another_is_seen(queue: tuple[str, int]) -> None:
    shape = Shape(36e6, *queue, delay_s=50e-6)
    qdiscs, ceilings = held(shape)
    assert shape.check("p0 gpu0", qdiscs, ceilings) == []
    (wrong,) = shape.check("p0 gpu0", [qdisc for qdisc in qdiscs if qdisc["kind"] != "netem"], ceilings)
    assert wrong.startswith("p0 gpu0: netem delays are []")
    next(qdisc for qdisc in qdiscs if qdisc["kind"] == "netem")["options"]["delay"]["delay"] = 0.05
    assert len(shape.check("p0 gpu0", qdiscs, ceilings)) == 1
    plain, ceilings = held(Shape(36e6, *queue))
    assert Shape(36e6, *queue).check("p0 gpu0", plain, ceilings) == []
    assert len(Shape(36e6, *queue).check("p0 gpu0", qdiscs, ceilings)) == 1  # one that nobody asked for


@pytest.mark.parametrize("delay_s", [-1e-6, 11.0, float("nan")])
def test_a_delay_that_netem_cannot_make_is_refused(delay_s: float) -> None:
    with pytest.raises(ShapingError, match="delay of"):
        Shape(36e6, delay_s=delay_s)


def test_every_kv_link_delays_and_a_circuit_by_its_two_links() -> None:
    """In wall time: a delay is dilated as every duration is. The host network has none."""
    experiment = load(DEMO, ["cluster.link_delay_us=5", "scale.time_dilation=4"])
    for fabric, links in zip(experiment.fabrics[:2], (1, 2), strict=True):
        plan = FabricPlan(experiment, fabric, 1, ())
        assert plan.link_delay_s == pytest.approx(20e-6)
        cluster = plan.cluster()
        names = {node: node for node in [*cluster.hosts(), *cluster.switches()]}
        ends = [end for pair in link_ends(cluster, names, plan.link_delay_s) for end in pair]
        assert {end.shape.delay_us for end in ends if end.shape} == {links * 20}
        assert any(end.shape is None and end.interface == "host0" for end in ends)


def test_the_key_has_limits_and_is_off_by_default() -> None:
    assert load(DEMO).cluster.link_delay_us == 0
    for value in ("-1", "10001", "fast"):
        with pytest.raises(SpecError, match="link_delay_us"):
            load(DEMO, [f"cluster.link_delay_us={value}"])


def test_where_netem_is_not_a_delay_is_refused_by_name_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delayed = load(DEMO, ["cluster.link_delay_us=5"])
    monkeypatch.setattr(plan_checks, "netem_works", lambda: False)
    (line,) = plan_checks.refusals(delayed)
    assert line.startswith("cluster.link_delay_us: 5 us of delay needs the qdisc netem")
    assert plan_checks.refusals(load(DEMO)) == []
    done = CliRunner().invoke(cli.app, ["run", DEMO, "--set", "cluster.link_delay_us=5"])
    assert done.exit_code == 2
    assert "cluster.link_delay_us" in done.output
    monkeypatch.setattr(plan_checks, "netem_works", lambda: True)
    assert plan_checks.refusals(delayed) == []
    (line,) = plan_checks.refusals(load(DEMO, ["cluster.link_delay_us=0.5"]))
    assert "less than the 1 us" in line


def test_the_twin_says_that_it_leaves_the_delay_out(tmp_path) -> None:
    overrides = ["cluster.link_delay_us=5", "workload.window_s=5"]
    words = [word for override in overrides for word in ("--set", override)]
    done = CliRunner().invoke(cli.app, ["simulate", DEMO, *words, "--artifact-dir", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "cluster.link_delay_us is left out" in done.output
