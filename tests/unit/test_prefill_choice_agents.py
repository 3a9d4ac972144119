"""The gateway's prefill choice in real processes: the built-in rules, a user's own file, and one that misbehaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents_stand_in import AgentsUnderTest, StandInController, a_request, loopback_config

from inputs.plugin_file import sha256

ROOT = Path(__file__).resolve().parents[2]
LONG = {"new_tokens": 8_000, "cached_tokens": 0}

pytestmark = pytest.mark.timed

Launch = Callable[..., AgentsUnderTest]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Agents of two prefill instances with this prefill choice; requests 20 ms apart, the first one long."""
    opened: list[Any] = []

    def start(choice: dict[str, Any]) -> AgentsUnderTest:
        requests = [a_request(0, 0.0, **LONG), *(a_request(i, 0.02 * i) for i in range(1, 6))]
        controller = StandInController(["d0"], transfer="pull", circuits=False)
        opened.append(controller)
        config = loopback_config(tmp_path, requests, controller.port, prefills=2, base=5, prefill_choice=choice)
        opened.append(AgentsUnderTest(config))
        return opened[-1]

    yield start
    for each in reversed(opened):
        each.close()


def served(agents: AgentsUnderTest) -> list[str]:
    """The instance of each request, in order of arrival."""
    agents.wait_for("ready", 4)
    agents.start()
    agents.wait_for("exit", 1)
    assert agents.finish() == 0
    assert agents.of("error") == []
    records = sorted(agents.records("request"), key=lambda record: record["index"])
    assert {record["status"] for record in records} == {"completed"}
    return [record["prefill"] for record in records]


def own(folder: Path, body: str) -> dict[str, Any]:
    path = folder / "own.py"
    path.write_text(f"class Own:\n    def choose(self, demand, candidates, now_s):\n        {body}\n")
    return {"rule": f"{path}:Own", "sha256": sha256(path)}


def test_turns_go_past_a_long_prefill_with_least_work(launch: Launch) -> None:
    assert served(launch({"rule": "least-work"})) == ["p0", *["p1"] * 5]


def test_the_example_chooses_in_the_gateway_s_process(launch: Launch) -> None:
    path = ROOT / "examples" / "same_prefill.py"
    assert served(launch({"rule": f"{path}:SamePrefill", "sha256": sha256(path)})) == ["p0", *["p1"] * 5]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('out of luck')", "own.py:Own failed:"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("return 'p9'", "returned 'p9' for 'r0'; it may choose among p0, p1"),
        ("exec('while True: pass')", "own.py:Own took longer than 2 s to decide:"),
    ],
)
def test_a_rule_that_fails_ends_the_gateway_with_its_name(launch: Launch, tmp_path: Path, body: str, said: str) -> None:
    agents = launch(own(tmp_path, body))
    agents.wait_for("ready", 4)
    agents.start()
    [ended] = agents.wait_for("exit", 1, timeout_s=10)
    assert (ended["agent"], ended["status"]) == ("gw", 1)
    [error] = agents.of("error")
    assert error["where"] == "prefill choice"
    assert said in error["text"]
    records = agents.records("request")
    assert len(records) == 6
    assert {record["status"] for record in records} == {"unfinished"}
    assert agents.finish() == 1


def test_a_file_that_has_changed_since_the_run_began_is_not_loaded(launch: Launch, tmp_path: Path) -> None:
    choice = own(tmp_path, "return 'p0'")
    (tmp_path / "own.py").write_text("raise SystemExit")
    agents = launch(choice)
    assert agents.drain() == 2
    [error] = agents.of("error")
    assert "own.py has changed since the run began" in error["text"]
