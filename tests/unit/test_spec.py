"""Experiment files: what they mean, and what a file that cannot be run is told."""

import copy
from pathlib import Path

import pytest
import yaml

from experiments.schema.spec import Experiment, SpecError, load

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
DEMO = EXPERIMENTS / "demo.yaml"
ROW = '{"timestamp": 0, "input_length": 10, "hash_ids": [1]}\n'


def refused(path=DEMO, overrides=()):
    with pytest.raises(SpecError) as error:
        load(path, overrides)
    return str(error.value)


@pytest.fixture
def edited(tmp_path):
    """A copy of the demo with an edit, in a folder of its own."""

    def edited(edit):
        data = copy.deepcopy(yaml.safe_load(DEMO.read_text()))
        edit(data)
        path = tmp_path / "edited.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return path

    return edited


def test_demo_is_the_experiment_of_the_design():
    demo = load(DEMO)
    assert demo.name == "demo"
    assert (demo.cluster.prefill_instances, demo.cluster.decode_instances, demo.cluster.gpus_per_instance) == (4, 3, 1)
    assert demo.transfer == "pull"
    assert (demo.workload.window_s, demo.workload.warmup_s) == (55, 5)
    assert [(fabric.name, fabric.kind) for fabric in demo.fabrics] == [
        ("eps-2to1-ecmp", "eps"), ("ocs-25ms", "ocs"), ("ocs-25ms-no-reuse", "ocs"),
    ]  # fmt: skip
    assert demo.fabrics[1].reconfiguration_s == 0.025
    assert [fabric.reuse for fabric in demo.fabrics[1:]] == [True, False]
    assert demo.seeds == [1]


def test_goodput_of_a_400g_link_at_90_percent_is_45_gb_per_s():
    assert load(DEMO).kv_goodput_bytes_per_s == 45e9


def test_uplinks_follow_from_the_oversubscription_and_only_packet_fabrics_have_them():
    demo = load(DEMO)
    assert [demo.uplinks(fabric) for fabric in demo.fabrics] == [2, 0, 0]


def test_eleven_uplinks_of_32_gpus_are_given_as_such():
    overrides = ["cluster.gpus_per_instance=4", "cluster.instances_per_rack=8"]
    message = refused(overrides=[*overrides, "fabrics.0.oversubscription=2.91"])
    assert "uplinks: 11 (2.909:1)" in message
    spec = load(DEMO, [*overrides, "fabrics.0.oversubscription=", "fabrics.0.uplinks=11"])
    assert spec.uplinks(spec.fabrics[0]) == 11


def test_defaults_leave_a_short_file(tmp_path):
    path = tmp_path / "short.yaml"
    path.write_text(
        "name: short\ncluster: {prefill_instances: 2, decode_instances: 2}\nmodel: {name: llama-3.1-8b}\n"
        "workload:\n  window_s: 10\n  tenants: [{name: a, source: synthetic-agentic, load: 0.5}]\n"
        "fabrics: [{name: ceiling, kind: none}]\n"
    )
    short = load(path)
    assert short.timing.chunk_tokens == 2048
    assert short.tenants[0].profile == "tracelab"
    assert short.slo.ttft_multiple == 5
    assert short.kv.bytes_per_token() == 131_072
    assert short.gpus_per_node == 4


def test_requests_are_those_of_the_seed():
    demo = load(DEMO, ["workload.window_s=5"])
    assert demo.requests(1) == demo.arrivals(1).requests
    assert demo.requests(1) != demo.requests(2)


def test_overrides_are_yaml_laid_over_the_file_and_seed_replaces_the_seeds():
    spec = load(DEMO, ["workload.tenants.0.load=0.75", "scale.rate_scale=1e-3", "seeds=[3, 4]"], seed=9)
    assert spec.workload.tenants[0].load == 0.75
    assert spec.scale.rate_scale == 1e-3
    assert spec.seeds == [9]


def test_an_override_may_give_what_the_file_leaves_out(edited):
    path = edited(lambda data: data.pop("slo"))
    assert load(path, ["slo.ttft_multiple=3"]).slo.ttft_multiple == 3


def test_dump_is_the_resolved_experiment_and_loads_again(tmp_path):
    demo = load(DEMO, ["workload.tenants.0.load=0.75"])
    path = tmp_path / "config.yaml"
    path.write_text(demo.dump())
    assert load(path) == demo
    assert yaml.safe_load(demo.dump())["fabrics"][0]["queue"] == "drr"


def test_trace_path_in_the_file_is_relative_to_its_folder(edited, tmp_path, monkeypatch):
    (tmp_path / "trace.jsonl").write_text(ROW)
    path = edited(lambda data: data["workload"].update(tenants=[mooncake("trace.jsonl")]))
    monkeypatch.chdir("/")
    assert load(path).workload.tenants[0].path == str(tmp_path / "trace.jsonl")


def test_trace_path_of_an_override_is_relative_to_the_current_directory(edited, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine.jsonl").write_text(ROW)
    path = edited(lambda data: data["workload"].update(tenants=[mooncake("trace.jsonl")]))
    monkeypatch.chdir(elsewhere)
    spec = load(path, ["workload.tenants.0.path=mine.jsonl"])
    assert spec.workload.tenants[0].path == str(elsewhere / "mine.jsonl")


def mooncake(path, **more):
    return {"name": "chat", "source": "mooncake", "path": path, "load": 0.5} | more


def test_affinity_is_refused_for_a_trace_without_sessions(edited, tmp_path):
    (tmp_path / "trace.jsonl").write_text(ROW)
    tenant = mooncake("trace.jsonl", source="azure", migrate="affinity")
    assert "affinity needs sessions" in refused(edited(lambda data: data["workload"].update(tenants=[tenant])))


def test_missing_trace_is_refused_at_load(edited, tmp_path):
    message = refused(edited(lambda data: data["workload"].update(tenants=[mooncake("nothing.jsonl")])))
    assert f"workload.tenants.0.path: {tmp_path / 'nothing.jsonl'}: no such file" in message


def test_mooncake_experiment_asks_for_its_trace():
    message = refused(EXPERIMENTS / "mooncake.yaml")
    assert "give it with --set workload.tenants.0.path=FILE" in message
    assert "mooncake.yaml:16: workload.tenants.0.path" in message


def test_mooncake_experiment_compares_a_packet_fabric_with_circuits(tmp_path):
    (tmp_path / "t.jsonl").write_text(ROW)
    spec = load(EXPERIMENTS / "mooncake.yaml", [f"workload.tenants.0.path={tmp_path / 't.jsonl'}"])
    assert {fabric.kind for fabric in spec.fabrics} == {"eps", "ocs"}
    assert spec.model.name == "llama-3.1-70b"


def test_an_error_names_file_line_path_and_the_nearest_key(edited):
    path = edited(lambda data: data["workload"]["tenants"][0].update(lod=0.5))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "lod:" in text)
    assert refused(path).startswith(f"{path}:{line}: workload.tenants.0.lod: unknown key; did you mean 'load'?")


def test_an_error_of_an_override_names_the_override():
    assert refused(overrides=["workload.window_s=-1"]).startswith("--set workload.window_s=-1: workload.window_s: -1: ")


@pytest.mark.parametrize(
    ("override", "path"),
    [("seeds=[-1]", "seeds.0"), ("workload.tenants=[{name: a, source: synthetic-agentic}]", "workload.tenants.0.load")],
)
def test_an_error_inside_an_override_names_the_override_not_the_line_it_replaced(override, path):
    assert refused(overrides=[override]).startswith(f"--set {override}: {path}: ")


def test_every_error_is_reported_at_once():
    message = refused(overrides=["cluster.link_gbps=0", "transfer=push", "model.kv_dtype=int4"])
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clustr=1", "did you mean 'cluster'?"),
        ("cluster.link_gbit=1", "did you mean 'link_gbps'?"),
        ("fabrics.1.reconfiguration_us=25", "did you mean 'reconfiguration_ms'?"),
        ("fabrics.1.oversubscription=2", "unknown key"),
        ("fabrics.0.reuse=true", "unknown key"),
        ("fabrics.0.kind=oct", "did you mean 'ocs'?"),
        ("fabrics.0={name: x}", "fabrics.0.kind: missing"),
        ("fabrics.0={name: x, kind: none, queue: drr}", "fabrics.0.queue: unknown key"),
        ("fabrics.1={name: x, kind: ocs}", "fabrics.1.reconfiguration_ms: missing"),
        ("fabrics=[]", "at least 1"),
        ("fabrics.0.routing=sprt", "did you mean 'srpt'?"),
        ("fabrics.0={name: x, kind: eps, uplinks: 2, routing: srpt, queue: drr}", "'drr' with routing srpt"),
        (
            "fabrics.0={name: x, kind: eps, uplinks: 2, routing: srpt, ecmp_unit: pair}",
            "'pair' with routing srpt: transfers on a kept connection follow each other",
        ),
        ("fabrics.0.queue=priority", "'priority' with routing ecmp: srpt needs priority, and priority needs srpt"),
        ("fabrics.0.ecmp_seeds=[1]", "at least 2"),
        ("fabrics.0.ecmp_seeds=[1, 2, 1]", "names a seed twice"),
        ("fabrics.0={name: x, kind: eps, uplinks: 2, routing: srpt, ecmp_seeds: [1, 2]}", "srpt hashes nothing"),
        (
            "fabrics=[{name: x, kind: eps, uplinks: 2, ecmp_seeds: [1, 2]}, {name: x-h2, kind: none}]",
            "becomes 'x-h2', the name of fabric 1",
        ),
        ("fabrics.0.oversubscription=2.91", "give uplinks: 1 (4:1) instead"),
        ("cluster.racks=shared", "apart, mixed"),
        ("fabrics.1.commit=none", "'circuit-aware' chooses by what is booked, and commit none books nothing ahead"),
        ("fabrics.1.commit=last_chunk", "did you mean 'last-chunk'?"),
        ("fabrics.0.ecmp_unit=packet", "transfer, pair"),
        ("fabrics.0.queue=red", "drr, fifo, priority"),
        ("fabrics.1.decode_choice=circuitaware", "did you mean 'circuit-aware'?"),
        ("fabrics.0.decode_choice=circuit-aware", "an eps has none"),
        ("fabrics.0.uplinks=2", "only one of them"),
        ("fabrics.0.oversubscription=", "give either"),
        ("fabrics.0.oversubscription=3", "1.333 uplinks"),
        ("fabrics.0.oversubscription=0.5", "greater than or equal to 1"),
        ("fabrics.0.name=ocs-25ms", "already the name of fabric 0"),
        ("fabrics.0.name=../x", "pattern"),
        ("fabrics.1.reconfiguration_ms=-1", "greater than or equal to 0"),
        ("cluster.gpus_per_instance=3", "allowed: 1, 2, 4"),
        ("cluster.gpus_per_instance=8", "must divide tp"),
        ("cluster.gpus_per_node=3", "allowed: 1, one instance a node, or 2, two"),
        ("cluster.gpus_per_node=2", "3 with two instances a node"),
        ("cluster.link_efficiency=90", "a share above 0 and at most 1"),
        ("cluster.prefill_instances=0", "greater than or equal to 1"),
        ("cluster.prefill_instances=4.5", "valid integer"),
        ("cluster.prefill_instances=true", "valid integer"),
        ("model.tp=3", "8 KV heads"),
        ("model.name=llama-3.1-70B", "did you mean 'llama-3.1-70b'?"),
        ("prefill.timing=h100", "h100-tp4, h100-tp4-low, h100-tp4-mid"),
        ("prefill.median_error=4.6", "a share (0.046 is 4.6 %)"),
        ("scale.rate_scale=.nan", "finite"),
        ("scale.time_dilation=.inf", "finite"),
        ("workload.window_s=0", "greater than 0"),
        ("workload.window_s=ten", "valid number"),
        ("workload.tenants=[]", "at least 1"),
        ("workload.tenants.0.load=60", "0.6 is 60 %"),
        ("workload.tenants.0.load=", "needs a load"),
        ("workload.tenants.0.share=0.5", "add up to 0.5"),
        ("workload.tenants.0.share=50", "at most 1"),
        ("workload.tenants.0.migrate=sometimes", "always, affinity, or a fraction"),
        ("workload.tenants.0.migrate=1.5", "a fraction from 0 to 1"),
        ("workload.tenants.0.source=moncake", "did you mean 'mooncake'?"),
        ("workload.tenants.0.profile=agentxx", "did you mean 'agentx'?"),
        ("workload.tenants.0.path=x", "reads no trace"),
        ("workload.tenants.0.name=warmup-x", "warm-up"),
        ("slo.ttft_multiple=0", "greater than 0"),
        ("seeds=[1, 2, 1]", "1 is given 2 times"),
        ("seeds=[]", "at least 1"),
        ("seeds=[-1]", "greater than or equal to 0"),
        ("workload.tenants.3.load=1", "no index"),
        ("name.first=1", "has no key 'first'"),
        ("workload.window_s", "write path.to.key=value"),
        ("seeds=[1", "not YAML"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_remedy(override, message):
    said = refused(overrides=[override])
    assert message in said
    assert f"--set {override}" in said or "demo.yaml:" in said


@pytest.mark.parametrize("choice", ["least-loaded", "round-robin", "session-affinity", "random"])
def test_decode_choices_are_built_in(choice):
    assert load(DEMO, [f"fabrics.1.decode_choice={choice}"]).fabrics[1].decode_choice == choice


def test_a_decode_choice_of_one_s_own_is_named_by_its_file_once_it_is_found(tmp_path, monkeypatch):
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "module.py").write_text("class Choice: ...\n")
    monkeypatch.chdir(tmp_path)
    found = load(DEMO, ["fabrics.1.decode_choice=my.module:Choice"])
    assert found.fabrics[1].decode_choice == f"{tmp_path}/my/module.py:Choice"
    assert found.plugins == {"fabrics.1.decode_choice": f"{tmp_path}/my/module.py:Choice"}


@pytest.mark.parametrize(
    ("migrate", "value"), [("always", "always"), ("affinity", "affinity"), ("0", 0.0), ("0.5", 0.5)]
)
def test_migration_rules(migrate, value):
    assert load(DEMO, [f"workload.tenants.0.migrate={migrate}"]).tenants[0].migrate == value


def test_two_instances_a_node_need_a_decode_of_each_tenant_in_each_half(edited):
    def edit(data):
        data["cluster"] |= {"prefill_instances": 4, "decode_instances": 2, "gpus_per_node": 2}
        tenant = data["workload"]["tenants"][0]
        data["workload"]["tenants"] = [tenant | {"name": name, "share": 0.5} for name in ("a", "b")]

    assert "p1 of tenant a has no decode instance in its half" in refused(edited(edit))


def test_shortest_remaining_first_comes_with_queues_that_know_who_is_first():
    fabric = load(DEMO, ["fabrics=[{name: s, kind: eps, oversubscription: 2, routing: srpt}]"]).fabrics[0]
    assert fabric.queue == "priority"


@pytest.mark.parametrize("gbps", [400, 800])
@pytest.mark.parametrize(("ratio", "uplinks"), [(1, 32), (2, 16), (4, 8)])
def test_a_rack_of_32_gpus_at_any_whole_oversubscription_and_either_port_rate(ratio, uplinks, gbps):
    overrides = ["cluster.gpus_per_instance=4", "cluster.instances_per_rack=8", f"cluster.link_gbps={gbps}"]
    experiment = load(DEMO, [*overrides, f"fabrics.0.oversubscription={ratio}"])
    assert experiment.uplinks(experiment.fabrics[0]) == uplinks
    assert experiment.kv_goodput_bytes_per_s == gbps / 8 * 0.9e9


def test_three_to_one_of_32_gpus_says_which_uplinks_come_near():
    overrides = ["cluster.gpus_per_instance=4", "cluster.instances_per_rack=8"]
    for ratio in (3, 2.91):
        assert "give uplinks: 11 (2.909:1) instead" in refused(
            overrides=[*overrides, f"fabrics.0.oversubscription={ratio}"]
        )


def test_hash_seeds_make_one_fabric_each_that_differ_in_nothing_else(tmp_path):
    spec = load(DEMO, ["fabrics.0.ecmp_seeds=[3, 5]"])
    first, second = spec.fabrics[:2]
    assert [(each.name, each.ecmp_seed) for each in (first, second)] == [
        ("eps-2to1-ecmp-h3", 3),
        ("eps-2to1-ecmp-h5", 5),
    ]
    assert first.model_dump(exclude={"name", "ecmp_seed"}) == second.model_dump(exclude={"name", "ecmp_seed"})
    assert len(spec.fabrics) == 4
    dumped = tmp_path / "config.yaml"
    dumped.write_text(spec.dump())
    assert load(dumped) == spec


def test_an_experiment_built_in_code_is_checked_too():
    data = load(DEMO).model_dump() | {"seeds": [1, 1]}
    with pytest.raises(ValueError, match="seeds: 1 is given 2 times"):
        Experiment.model_validate(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", ":2: name: given twice, first in line 1"),
        ("name: [1\n", ": not YAML"),
        ("- 1\n", "an experiment is a mapping"),
        ("", "an experiment is a mapping"),
        ("name: &x [*x]\n", "aliases are not read"),
    ],
)
def test_files_that_are_no_experiment(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert message in refused(path)


def test_a_missing_file_suggests_its_neighbour():
    assert "no such experiment file; did you mean 'demo.yaml'?" in refused(EXPERIMENTS / "demos.yaml")
