"""The accounting as rows of the report."""

from __future__ import annotations

from test_summary_table import run

from results.report.accounting_view import MOVE_COLUMNS, PORT_COLUMNS, move_row, port_rows

ACCOUNTING = {
    "migrated": 296,
    "head_bytes_per_rank": 1_603_300_000_000,
    "tail_bytes_per_rank": 52_900_000_000,
    "kept_decode_share": {"agentic": 0.685},
    "busiest_decode_over_mean": {"agentic": 1.137},
    "ports": {
        "d0": {"dark_s": 2.0, "live_moving_s": 12.0, "live_idle_s": 13.0},
        "p0": {"dark_s": 1.0, "live_moving_s": 9.0, "live_idle_s": 9.0},
    },
}


def test_a_fabric_says_what_it_moved_and_how_often_it_kept_its_decode():
    circuits = run("none", "ocs", accounting=ACCOUNTING, switches=238, reuses=58, migrated_share=1.0)
    cells = dict(zip(MOVE_COLUMNS, move_row(circuits, [circuits]), strict=True))
    assert cells["head moved, GB per rank"] == "1603.3"
    assert cells["tail moved, GB per rank"] == "52.9"
    assert (cells["kept decode"], cells["busiest decode / mean"]) == ("68.5 %", "1.14")
    assert (cells["switches"], cells["reuses"]) == ("238", "58")


def test_tenants_are_named_where_there_are_several():
    shares = ACCOUNTING | {"kept_decode_share": {"agentic": 0.5, "chat": None}}
    cells = dict(zip(MOVE_COLUMNS, move_row(run(accounting=shares), [run()]), strict=True))
    assert cells["kept decode"] == "agentic 50.0 %, chat -"


def test_ports_are_the_mean_of_the_instances_and_the_one_held_longest():
    runs = [run("eps"), run("none", "ocs", accounting=ACCOUNTING)]
    (row,) = port_rows(runs)
    assert dict(zip(PORT_COLUMNS, row, strict=True)) == {
        "fabric": "none",
        "dark, s": "1.50",
        "live and moving, s": "10.50",
        "live and idle, s": "11.00",
        "busiest instance": "d0",
        "its ports held, s": "27.00",
    }


def test_an_older_summary_without_accounting_has_dashes():
    assert move_row(run(), [run()])[3:] == ["-"] * 6
    assert port_rows([run()]) == []
