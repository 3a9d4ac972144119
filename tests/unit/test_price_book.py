"""Price books: the shipped two, sources, inferred figures, and refusals that say where and why."""

from __future__ import annotations

import pytest
import yaml

from economics.price_book import BOOKS, PriceBookError, load


def written(tmp_path, change):
    """Book A with `change` applied to its data, as a file."""
    data = yaml.safe_load(BOOKS["A"].read_text())
    change(data)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.mark.parametrize("name", BOOKS)
def test_every_figure_of_a_shipped_book_has_a_source(name):
    quotes = dict(load(name).quotes())
    assert {"prices_usd.nic_400g", "prices_usd.ocs_port", "power_w.ocs_port"} <= set(quotes)
    assert all(len(quote.source) > 10 for quote in quotes.values())


def test_book_b_says_which_figures_are_inferred_and_between_which_bounds():
    bounds = {key: (q.value, q.inferred.low, q.inferred.high) for key, q in load("b").inferred().items()}
    assert bounds == {
        "prices_usd.nic_400g": (1499, 1450, 1550),
        "prices_usd.module_400g": (713, 680, 730),
        "control_network.per_gpu": (150, 100, 190),
    }


def test_book_a_infers_nothing_and_shares_one_control_link_per_node():
    book = load("A")
    assert not book.inferred()
    assert book.control_network.usd_per_gpu(8) == pytest.approx(130.5)
    assert book.control_network.usd_per_gpu(4) == pytest.approx(261)


def test_the_corners_are_every_combination_of_bounds():
    corners = list(load("B").corners())
    nics = [corner.prices_usd.nic_400g.value for corner in corners]
    assert (len(corners), nics.count(1450), nics.count(1550)) == (8, 4, 4)
    assert list(load("A").corners()) == [load("A")]


def test_a_users_own_book_is_read_from_its_path(tmp_path):
    path = written(tmp_path, lambda data: data["prices_usd"]["ocs_port"].update(value=300))
    assert load(path).prices_usd.ocs_port.value == 300


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["prices_usd"]["nic_400g"].update(value=-1), "prices_usd.nic_400g.value = -1"),
        (lambda d: d["prices_usd"]["nic_400g"].update(value="1499"), "prices_usd.nic_400g.value = '1499'"),
        (lambda d: d["prices_usd"]["nic_400g"].update(value=True), "prices_usd.nic_400g.value = True"),
        (lambda d: d["prices_usd"]["nic_400g"].update(value=float("nan")), "prices_usd.nic_400g.value = nan"),
        (lambda d: d["prices_usd"]["nic_400g"].update(value=float("inf")), "prices_usd.nic_400g.value = inf"),
        (lambda d: d["prices_usd"]["nic_400g"].pop("source"), "prices_usd.nic_400g.source"),
        (lambda d: d["prices_usd"]["nic_400g"].update(source=""), "prices_usd.nic_400g.source = ''"),
        (lambda d: d["prices_usd"].pop("ocs_port"), "prices_usd.ocs_port"),
        (lambda d: d["prices_usd"].update(nic_800g={"value": 1, "source": "x"}), "prices_usd.nic_800g"),
        (lambda d: d["power_w"]["ocs_port"].update(value=-0.39), "power_w.ocs_port.value = -0.39"),
        (lambda d: d["ratios"]["fr4_module_to_module_400g"].update(value=0), "fr4_module_to_module_400g.value = 0"),
        (lambda d: d["control_network"].pop("nic_100g"), "give either per_gpu, or all of nic_100g"),
        (lambda d: d["control_network"].update(per_gpu={"value": 1, "source": "x"}), "give either per_gpu, or all"),
        (
            lambda d: d["prices_usd"]["ocs_port"].update(inferred={"low": 600, "high": 700}),
            "value 520 lies outside its bounds 600 to 700",
        ),
        (
            lambda d: d["prices_usd"]["ocs_port"].update(inferred={"low": 520, "high": 520}),
            "low 520 is not below high 520",
        ),
    ],
)
def test_a_book_that_cannot_be_used_is_refused_with_file_key_and_value(tmp_path, change, says):
    path = written(tmp_path, change)
    with pytest.raises(PriceBookError) as refused:
        load(path)
    assert str(path) in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("- 1\n", "expected keys and values"),
        ("", "expected keys and values"),
        ("\x00", "not YAML"),
    ],
)
def test_a_file_that_is_no_book_is_refused(tmp_path, text, says):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(PriceBookError, match=says):
        load(path)


def test_a_missing_file_and_a_directory_are_refused_with_the_shipped_names(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(PriceBookError, match="shipped books A, B"):
            load(path)


def test_an_unknown_key_to_change_is_an_error():
    with pytest.raises(KeyError):
        load("A").with_value("prices_usd.nic_800g", 1)
