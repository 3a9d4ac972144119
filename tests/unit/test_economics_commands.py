"""`cost` and `link-budget` as a user calls them."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app

ROOT = Path(__file__).resolve().parents[2]


def call(*args: str):
    return CliRunner().invoke(app, args)


def document(*args: str) -> dict:
    result = call(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def row(found: dict, book: str, fabric: str, gpus: int) -> dict:
    (only,) = [r for r in found["rows"] if (r["book"], r["fabric"], r["gpus"]) == (book, fabric, gpus)]
    return only


def test_cost_prints_both_books_with_units_sizes_up_to_the_reach_and_the_published_ratios():
    result = call("cost")
    assert result.exit_code == 0
    for header in ("million USD", "per GPU", "EPS 2:1", "EPS 3:1", "W per", "kW"):
        assert header in result.stdout
    for cell in (
        "3,072",
        "1.31",
        "0.55",
        "0.61",
        "0.77",
        "1.27..1.27",
        "0.76..0.79",
        "1.33..1.39",
    ):
        assert cell in result.stdout


def test_cost_says_inferred_with_the_bounds_for_book_b_and_not_for_book_a():
    b, a = call("cost", "--book", "B", "--gpus", "256"), call("cost", "--book", "A", "--gpus", "256")
    notes = " ".join(b.stdout.split())
    assert "nic_400g 1,499 USD, inferred, 1,450 to 1,550 USD" in notes
    assert "module_400g 713 USD, inferred, 680 to 730 USD" in notes
    assert "control network per_gpu 150 USD, inferred, 100 to 190 USD" in notes
    assert any(line.split() == ["fabric", *4 * ["inferred"], "GPU", "kW"] for line in b.stdout.splitlines())
    assert "inferred" not in a.stdout


def test_nothing_is_cut_or_broken_on_a_terminal_of_80_columns():
    from economics import tables
    from economics.cost import Basis, cost_rows, default_fabrics
    from economics.price_book import load
    from outputs.terminal import Terminal

    book = load("B")
    rows, per_port = (cost_rows(default_fabrics(), [3072], [book], Basis(whole)) for whole in (True, False))
    console = Terminal(width=80, record=True, file=io.StringIO())
    console.print(tables.cost_table(book, rows))
    console.print(tables.change_table(rows, per_port))
    text = console.export_text()
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
    for row in rows:
        for word in (tables.million(row.cost_usd), tables.dollars(row.cost_usd_per_gpu)):
            assert all(part in text for part in word.split("\n"))


def test_cost_json_holds_units_in_every_key_ranges_and_sources():
    found = document("cost", "--gpus", "256,1024")
    assert (found["schema"], found["basis"]) == (1, "per port")
    ocs = row(found, "B", "ocs-fr4-2port", 1024)
    assert ocs["ratio_to_eps_2to1"] == {
        "value": pytest.approx(0.7779, abs=1e-4),
        "low": pytest.approx(0.7622, abs=1e-4),
        "high": pytest.approx(0.7947, abs=1e-4),
        "inferred": True,
    }
    assert row(found, "A", "eps-2to1", 256)["cost_usd"]["value"] == 256 * 5656
    assert row(found, "A", "ocs-fr4-1port", 256)["power_w_per_gpu"] == pytest.approx(0.39)
    assert found["books"][1]["prices_usd"]["nic_400g"]["inferred"] == {"low": 1450, "high": 1550}
    assert all(quote["source"] for quote in found["books"][0]["prices_usd"].values())


def test_whole_switches_say_what_they_change():
    found = document("cost", "--gpus", "256", "--whole-switches")
    changed = row(found, "A", "eps-1to1", 256)
    assert found["basis"] == "whole switches"
    assert changed["switches"] == 6
    assert round(changed["ratio_to_eps_2to1"]["value"], 2) == 1.06
    assert round(changed["per_port"]["ratio_to_eps_2to1"]["value"], 2) == 1.31
    table = call("cost", "--gpus", "256", "--book", "A", "--whole-switches").stdout
    assert "What whole switches change in cost / EPS 2:1" in table
    (line,) = [each for each in table.splitlines() if "EPS 1:1" in each and "%" in each]
    assert [word in line for word in ("1.31", "1.06", "-18.9%")] == [True, True, True]


def test_needed_cabling_is_an_option_of_whole_switches_only():
    found = document("cost", "--gpus", "256", "--whole-switches", "--leaf-cabling", "needed")
    assert round(row(found, "A", "eps-1to1", 256)["ratio_to_eps_2to1"]["value"], 2) == 1.19
    refused = call("cost", "--leaf-cabling", "needed")
    assert refused.exit_code == 2
    assert "add --whole-switches" in refused.stderr


def test_any_uplink_count_can_be_asked_for():
    found = document("cost", "--gpus", "256", "--uplinks", "20", "--book", "A")
    assert row(found, "A", "eps-20of32", 256)["cost_usd_per_gpu"]["value"] == pytest.approx(
        1499 + 2 * 659 + 1090 + 20 / 32 * 2 * (1090 + 659)
    )


def test_a_users_own_book_is_one_option_away(tmp_path):
    text = (ROOT / "economics/books/book_a.yaml").read_text().replace("name: A", "name: mine").replace("520,", "100,")
    (tmp_path / "mine.yaml").write_text(text)
    found = document("cost", "--gpus", "256", "--book", str(tmp_path / "mine.yaml"), "--book", "A")
    mine, shipped = (row(found, book, "ocs-fr4-1port", 256)["cost_usd_per_gpu"]["value"] for book in ("mine", "A"))
    assert shipped - mine == pytest.approx(420)


def test_192_port_planes_default_to_sizes_they_reach():
    assert {r["gpus"] for r in document("cost", "--plane-ports", "192")["rows"]} == {256, 1024, 1536}


def test_one_switch_for_all_gpus_is_said_to_have_no_uplinks():
    assert "At 128 GPUs one 51.2T switch joins all" in call("cost", "--gpus", "128").stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["cost", "--gpus", "4096"], "4,096 GPUs are beyond one OCS stage"),
        (["cost", "--gpus", "100"], "not a whole number of 8-GPU nodes"),
        (["cost", "--gpus", "many"], "--gpus 'many' is not whole numbers"),
        (["cost", "--gpus", "256,256"], "names a number twice"),
        (["cost", "--gpus", ""], "--gpus '' is not whole numbers"),
        (["cost", "--uplinks", "0"], "uplinks per rack = 0 is out of range"),
        (["cost", "--plane-ports", "320"], "plane ports = 320 is not one of 192, 384"),
        (["cost", "--book", "/none.yaml"], "price book /none.yaml: no such file"),
        (["cost", "--book", "A", "--book", "A"], "two price books share a name"),
        (["cost", "--figure", "ratio.pdf"], "give one of .png, .html"),
        (["cost", "--figure", "/none/ratio.png"], "there is no directory /none"),
        (["link-budget", "--tdecq-db", "4"], "TDECQ = 4 dB is out of range"),
        (["link-budget", "--launch-oma-dbm", "9"], "launch OMA per lane of 400GBASE-DR4 = 9 dBm is out of range"),
        (["link-budget", "--connectors", "-1"], "connectors = -1 is out of range"),
        (["link-budget", "--ocs-loss-db", "-1"], "OCS loss = -1 dB is out of range"),
        (["link-budget", "--ocs-ports", "320"], "320 ports, only of 192 and 384"),
        (["link-budget", "--optics", "sr4"], "give each of dr4, fr4 at most once"),
        (["link-budget", "--fibre-m", "900"], "fibre length of 400GBASE-DR4 = 900 m is out of range"),
        (["link-budget", "--margin-db", "-1"], "wanted margin = -1 dB is out of range"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason_on_stderr_and_status_2(args, says):
    result = call(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


def test_the_figure_is_a_png_and_a_page_that_needs_no_network(tmp_path):
    png, page = tmp_path / "ratio.png", tmp_path / "ratio.html"
    result = call("cost", "--gpus", "256,3072", "--figure", str(png), "--figure", str(page))
    assert result.exit_code == 0
    header = png.read_bytes()[:24]
    width, height = struct.unpack("!II", header[16:24])
    assert header.startswith(b"\x89PNG")
    assert width > height > 500
    html = page.read_text()
    assert "Price book B, inferred prices" in html
    assert "OCS FR4, 1 port" in html
    assert 'src="http' not in html


def test_the_figures_curves_hold_the_ratios_of_the_table():
    from economics.cost import default_fabrics
    from economics.figure import curves, sizes
    from economics.price_book import load

    drawn = curves(default_fabrics(), [load("A")], 256, 3072)
    ocs = next(curve for curve in drawn if curve.label.startswith("OCS FR4, 1"))
    assert (ocs.gpus[0], ocs.gpus[-1], ocs.dashed) == (256, 3072, False)
    assert ocs.value == pytest.approx([0.5513] * len(ocs.gpus), abs=1e-4)
    assert (sizes(256, 256), sizes(8, 32)) == ([256], [8, 16, 24, 32])


def test_tables_do_not_wait_for_plotting_libraries():
    script = (
        "import sys; from typer.testing import CliRunner; from cli import app\n"
        "result = CliRunner().invoke(app, ['cost'])\n"
        "heavy = {'matplotlib', 'plotly', 'numpy', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'{result.exit_code} {heavy}' if result.exit_code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_link_budget_prints_the_published_figures():
    result = call("link-budget")
    assert result.exit_code == 0
    for cell in (
        "5.95",
        "1.5 (1.55)",
        "1.7 (1.75)",
        "1.4 (1.45)",
        "4.1 (4.10)",
        "4.3 (4.30)",
        "50 ms",
        "2 dB",
        "1 pair",
    ):
        assert cell in result.stdout
    assert "are inferred" in result.stdout


def test_link_budget_json_holds_path_budgets_and_requirements():
    found = document("link-budget")
    assert found["path"]["loss_db"] == pytest.approx(5.95)
    assert [each["largest_tdecq_db_rounded_down"] for each in found["budgets"]] == [1.5, 1.7]
    assert [each["largest_loss_at_worst_tdecq_db_rounded_down"] for each in found["budgets"]] == [4.1, 4.3]
    assert [each["largest_tdecq_with_mpi_db"] for each in found["budgets"]] == pytest.approx([1.45, 1.45])
    assert len(found["requirements"]) == 5


def test_a_path_without_a_circuit_switch_and_a_switch_of_ones_own_can_be_asked_for():
    assert document("link-budget", "--ocs-loss-db", "0")["path"]["loss_db"] == pytest.approx(3.25)
    own = document("link-budget", "--ocs-loss-db", "1.5", "--connectors", "2", "--splices", "2")
    assert own["path"]["loss_db"] == pytest.approx(1.5 + 0.25 + 0.6 + 1.5)
    assert all(budget["margin_db"] > 2 for budget in own["budgets"])


def test_the_192_port_switch_says_its_loss_is_inferred():
    assert "192-port OCS (inferred)" in call("link-budget", "--ocs-ports", "192").stdout


def test_a_path_that_does_not_close_is_called_dark_with_a_limit_of_none():
    result = call("link-budget", "--connectors", "8", "--optics", "dr4")
    assert "-2.85 dark" in result.stdout
    assert "none" in result.stdout
