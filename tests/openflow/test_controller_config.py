"""The controller's configuration file: what contradicts itself is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controllers import config as controller_config
from controllers.config import ControllerConfigError
from controllers.core.placement import PacketPlacement
from controllers.core.reservations import Reservations
from inputs import plugin_file

PLANE = {"bridge": "plane0", "dpid": 1, "unixctl": "/run/x.ctl", "ports": {"p0": 1, "p1": 2, "d0": 3}}
CIRCUITS = {
    "fabric": {"kind": "ocs", "reconfiguration_s": 0.025, "commit": "last-chunk", "reuse": True},
    "transfer": "pull",
    "rate_bytes_per_s": 45e9,
    "time_dilation": 1,
    "excess_s": 0.0,
    "seed": 1,
    "prefills": ["p0", "p1"],
    "decodes": ["d0"],
    "planes": [PLANE],
    "reachable": {"p0": ["d0"], "p1": ["d0"]},
    "log": "/tmp/x.jsonl",
}


def read(directory: Path, document: Any) -> controller_config.ControllerConfig:
    path = directory / "controller.json"
    path.write_text(json.dumps(document))
    return controller_config.read(path)


def test_circuits_are_decided_by_reservations_and_packets_by_placement(tmp_path: Path) -> None:
    assert isinstance(controller_config.core(read(tmp_path, CIRCUITS)), Reservations)
    packets = {**CIRCUITS, "fabric": {"kind": "none"}, "planes": []}
    assert isinstance(controller_config.core(read(tmp_path, packets)), PacketPlacement)


def test_every_prefill_reaches_every_decode_unless_told_otherwise(tmp_path: Path) -> None:
    document = {key: value for key, value in CIRCUITS.items() if key != "reachable"}
    assert read(tmp_path, document).decodes_of() == {"p0": ["d0"], "p1": ["d0"]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prefills": ["p0", "p0"]}, "an instance is named twice"),
        ({"reachable": {"p0": ["d0"]}}, "reachable lacks ['p1']"),
        ({"reachable": {"p0": ["d0"], "p1": ["d7"]}}, "reachable['p1'] is ['d7']"),
        ({"reachable": {"p0": ["d0"], "p1": []}}, "reachable['p1'] is []"),
        ({"planes": [PLANE, PLANE]}, "two planes have the same dpid"),
        ({"planes": [{**PLANE, "ports": {"p0": 1, "d0": 3}}]}, "plane0 has no port for p1"),
        ({"planes": [{**PLANE, "ports": {"p0": 1, "p1": 1, "d0": 3}}]}, "plane0 gives one port to two instances"),
        (
            {"planes": [{**PLANE, "ports": {"p0": 1, "d0": 3}}, {**PLANE, "dpid": 2, "ports": {"p1": 1, "d0": 3}}]},
            "KV moves between equal GPU positions only",
        ),
        ({"planes": []}, "ocs has some, the others none"),
        ({"fabric": {"kind": "ocs"}}, "fabric.reconfiguration_s is missing"),
        ({"fabric": {"kind": "ocs", "reconfiguration_s": -1}}, "fabric.reconfiguration_s"),
        ({"fabric": {"kind": "mems", "reconfiguration_s": 1}}, "fabric.kind"),
        ({"time_dilation": 0}, "time_dilation: Input should be greater than 0 (got 0)"),
        ({"rate_bytes_per_s": float("inf")}, "rate_bytes_per_s: Input should be a finite number"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ControllerConfigError) as refused:
        read(tmp_path, {**CIRCUITS, **change})
    assert reason in str(refused.value)
    assert str(tmp_path / "controller.json") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_policy_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    document = {**CIRCUITS, "fabric": {"kind": "ocs", "reconfiguration_s": 0.025, "commit": "first-chunk"}}
    with pytest.raises(ControllerConfigError, match=r"commit 'first-chunk': not one of last-chunk, admission, none"):
        controller_config.core(read(tmp_path, document))


def test_a_plug_in_that_was_edited_while_the_run_went_on_is_refused(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("class Mine:\n    def choose(self, demand, candidates, now_s):\n        return 'd0'\n")
    digest = plugin_file.sha256(plugin)
    fabric = {**CIRCUITS["fabric"], "decode_choice": f"{plugin}:Mine", "plugins": {str(plugin): digest}}
    controller_config.core(read(tmp_path, {**CIRCUITS, "fabric": fabric}))
    plugin.write_text(plugin.read_text() + "# edited\n")
    with pytest.raises(
        ControllerConfigError, match=rf"mine.py has changed since the run began: its SHA-256 was {digest}"
    ):
        controller_config.core(read(tmp_path, {**CIRCUITS, "fabric": fabric}))
    plugin.unlink()
    with pytest.raises(ControllerConfigError, match=r"cannot read .*mine.py: No such file"):
        controller_config.core(read(tmp_path, {**CIRCUITS, "fabric": fabric}))
