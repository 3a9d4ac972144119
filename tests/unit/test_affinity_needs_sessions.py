"""Affinity over arrivals without sessions would do nothing: what the file has decides, not what its format could."""

import pytest
import trace_samples
import yaml
from typer.testing import CliRunner

from cli import app
from experiments.schema.spec import SpecError, load
from workloads.traces.trace import TraceError

EXPERIMENT = {
    "name": "t",
    "cluster": {"prefill_instances": 2, "decode_instances": 2, "gpus_per_instance": 1, "instances_per_rack": 2},
    "model": {"name": "llama-3.1-70b", "tp": 4},
    "workload": {"window_s": 10, "warmup_s": 1, "tenants": []},
    "fabrics": [{"name": "ecmp", "kind": "eps", "oversubscription": 2}],
    "seeds": [1],
}
FIRST_RELEASE = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{second},ChatGPT,1000,10,1010,API log\n" for second in range(40)
)
#: A file of each kind without sessions, and of each with them.
WITHOUT = ("burstgpt-1", "mooncake", "azure-2023", "vidur", "splitwise")
WITH = ("burstgpt", "bailian", "tracelab", "tracelab-rounds")


@pytest.fixture
def experiment(tmp_path):
    def experiment(name, decode_choice="least-loaded", **tenant):
        path = tmp_path / "t.trace"
        if name == "burstgpt-1":
            path.write_text(FIRST_RELEASE)
        else:
            path = trace_samples.write(name, tmp_path)
        tenants = [{"name": "a", "source": "auto", "path": str(path)} | tenant]
        data = EXPERIMENT | {"workload": EXPERIMENT["workload"] | {"tenants": tenants}}
        data |= {"fabrics": [EXPERIMENT["fabrics"][0] | {"decode_choice": decode_choice}]}
        (tmp_path / "exp.yaml").write_text(yaml.safe_dump(data))
        return tmp_path / "exp.yaml"

    return experiment


@pytest.mark.parametrize("name", WITHOUT)
def test_a_choice_by_session_is_refused_over_a_file_without_sessions(experiment, name):
    with pytest.raises(SpecError, match=r"fabrics\.0\.decode_choice: 'session-affinity' needs sessions"):
        load(experiment(name, "session-affinity")).arrivals(1)
    assert load(experiment(name)).arrivals(1).requests


def test_a_choice_by_session_is_refused_over_lengths_alone(experiment):
    with pytest.raises(SpecError, match="needs sessions"):
        load(experiment("vidur-lengths", "session-affinity", load=0.5)).arrivals(1)


@pytest.mark.parametrize("name", WITHOUT)
def test_migration_by_affinity_is_refused_over_a_file_without_sessions(experiment, name):
    with pytest.raises(TraceError, match=r"affinity needs sessions,? and (none of the \d+ rows|a \w+ trace has none)"):
        load(experiment(name, migrate="affinity")).arrivals(1)


@pytest.mark.parametrize("name", WITH)
def test_affinity_acts_on_a_file_with_sessions(experiment, name):
    found = load(experiment(name, "session-affinity", migrate="affinity")).arrivals(1)
    assert found.reports[0].in_sessions == len(found.requests)
    assert found.reports[0].returning > 0
    assert any("requests follow another of their session" in line for line in found.reports[0].lines())


def test_sessions_outside_the_slice_do_not_count(experiment, tmp_path):
    header, *rows = FIRST_RELEASE.splitlines()
    rows = [f"{row.partition(',')[0]},{'s' if i > 30 else ''},{row.partition(',')[2]}" for i, row in enumerate(rows)]
    path = tmp_path / "late.csv"
    path.write_text("\n".join([header.replace("Model", "Session ID,Model"), *rows, ""]))
    with pytest.raises(TraceError, match="none of the 11 rows that are replayed names one"):
        load(experiment("burstgpt-1", migrate="affinity", path=str(path))).arrivals(1)
    assert load(experiment("burstgpt-1", migrate="affinity", path=str(path), offset_s=29.5)).arrivals(1).requests


def test_the_report_says_what_affinity_could_act_on(experiment):
    [report] = load(experiment("azure-2023")).arrivals(1).reports
    assert "no request has a session: session affinity has nothing to act on" in report.lines()


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_the_commands_refuse_it_before_they_begin(experiment, tmp_path, command):
    more = ["--over", "transfer=pull,layerwise"] if command == "sweep" else ["--artifact-dir", str(tmp_path / "o")]
    done = CliRunner().invoke(app, [command, str(experiment("burstgpt-1", "session-affinity")), *more])
    assert done.exit_code == 2, done.output
    assert "'session-affinity' needs sessions" in " ".join(done.output.split())


def test_one_tenant_with_sessions_is_enough(experiment, tmp_path):
    path = experiment("burstgpt-1", "session-affinity")
    data = yaml.safe_load(path.read_text())
    synthetic = {"name": "b", "source": "synthetic-agentic", "load": 0.5, "share": 0.5}
    data["workload"]["tenants"] = [data["workload"]["tenants"][0] | {"share": 0.5}, synthetic]
    path.write_text(yaml.safe_dump(data))
    assert [bool(report.in_sessions) for report in load(path).arrivals(1).reports] == [False, True]
