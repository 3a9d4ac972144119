"""Cost and power: the published ratios to their printed digits, whole switches, reach, and properties."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from economics.bill import CircuitDesign, PacketDesign
from economics.cost import EPS_2TO1, EPS_3TO1, Basis, cost_row, cost_rows, cost_usd, default_fabrics, power_w
from economics.price_book import PriceBook, load
from economics.ranges import OutOfRange

A, B = load("A"), load("B")
EPS_1TO1 = PacketDesign(uplinks=32)
PAPER_SIZES_GPUS = (256, 1024, 3072)
nodes = st.integers(min_value=1, max_value=384)
fabrics = st.one_of(
    st.builds(PacketDesign, uplinks=st.integers(1, 32)),
    st.builds(CircuitDesign, optics=st.sampled_from(("fr4", "dr4")), ports_per_pair=st.sampled_from((1, 2))),
)


def ratio(fabric: PacketDesign | CircuitDesign, reference: PacketDesign, book: PriceBook, gpus: int = 256) -> float:
    return cost_usd(fabric.bill(gpus), book) / cost_usd(reference.bill(gpus), book)


@pytest.mark.parametrize("gpus", PAPER_SIZES_GPUS)
@pytest.mark.parametrize(
    ("fabric", "reference", "book", "printed"),
    [
        (EPS_1TO1, EPS_2TO1, A, "1.31"),
        (EPS_1TO1, EPS_2TO1, B, "1.27"),
        (CircuitDesign("fr4", 1), EPS_2TO1, A, "0.55"),
        (CircuitDesign("fr4", 2), EPS_2TO1, B, "0.78"),
        (CircuitDesign("fr4", 1), EPS_3TO1, A, "0.61"),
        (CircuitDesign("fr4", 2), EPS_3TO1, B, "0.85"),
        (CircuitDesign("dr4", 1), EPS_2TO1, A, "0.77"),
        (CircuitDesign("dr4", 2), EPS_2TO1, B, "1.36"),
    ],
)
def test_the_published_cost_ratios_come_out_to_their_printed_digits(fabric, reference, book, printed, gpus):
    assert f"{ratio(fabric, reference, book, gpus):.2f}" == printed


def test_the_ratios_of_book_a_and_b_have_the_third_digit_of_their_derivation():
    derived = [
        ratio(EPS_1TO1, EPS_2TO1, A),
        ratio(CircuitDesign("fr4", 1), EPS_2TO1, A),
        ratio(CircuitDesign("fr4", 1), EPS_3TO1, A),
        ratio(CircuitDesign("dr4", 1), EPS_2TO1, A),
        ratio(EPS_1TO1, EPS_2TO1, B),
        ratio(CircuitDesign("fr4", 2), EPS_2TO1, B),
        ratio(CircuitDesign("fr4", 2), EPS_3TO1, B),
        ratio(CircuitDesign("dr4", 2), EPS_2TO1, B),
    ]
    assert derived == pytest.approx([1.309, 0.551, 0.610, 0.772, 1.270, 0.778, 0.849, 1.358], abs=0.0006)


def test_a_gpu_of_a_2_to_1_packet_fabric_costs_nic_two_modules_leaf_port_and_half_an_uplink():
    assert cost_usd(EPS_2TO1.bill(256), A) == 256 * (1499 + 2 * 659 + 1090 + (2 * 1090 + 2 * 659) / 2)


def test_a_gpu_of_a_circuit_fabric_costs_nic_wdm_module_circuit_ports_and_its_share_of_the_control_network():
    control_usd = (659 + 2 * 99 + 187) / 8
    assert cost_usd(CircuitDesign("fr4", 2).bill(256), A) == pytest.approx(
        256 * (1499 + 1.47 * 659 + 2 * 520 + control_usd)
    )


def test_parallel_fibre_takes_four_times_the_circuit_ports_and_the_plain_module():
    bill = CircuitDesign("dr4", 1).bill(256)
    assert (bill.ocs_ports, bill.modules_400g, bill.modules_fr4) == (4 * 256, 256, 0)


def test_3_to_1_is_11_uplinks_per_32_gpus_and_says_2_91():
    assert EPS_3TO1.uplinks_per_gpu == Fraction(11, 32)
    assert EPS_3TO1.label == "EPS 3:1 (2.91:1)"
    assert [PacketDesign(uplinks=count).key for count in (32, 31, 16, 15, 11)] == [
        "eps-1to1",
        "eps-31of32",
        "eps-2to1",
        "eps-15of32",
        "eps-3to1",
    ]


# Power


def test_an_ocs_port_draws_0_39_w_against_39_4_w_of_a_packet_switch_port():
    circuit_w, _ = power_w(CircuitDesign("fr4", 1).bill(8), A)
    # At 1:1 on two tiers a GPU holds three ports: its leaf's, and both ends of its uplink.
    packet_w, _ = power_w(EPS_1TO1.bill(256), A)
    assert (circuit_w / 8, packet_w / 256 / 3) == (pytest.approx(0.39), pytest.approx(39.4))


def test_parts_without_a_power_figure_are_named_not_counted_as_nothing():
    row = cost_row(EPS_2TO1, 256, A)
    assert row.power_w_per_gpu == pytest.approx(2 * 39.4)
    assert row.power_leaves_out == ("NICs", "400G modules")


def test_a_power_figure_of_the_users_book_is_counted():
    data = A.model_dump(exclude_none=True)
    data["power_w"]["nic_400g"] = {"value": 25, "source": "datasheet"}
    row = cost_row(EPS_2TO1, 256, PriceBook.model_validate(data))
    assert row.power_w_per_gpu == pytest.approx(2 * 39.4 + 25)
    assert row.power_leaves_out == ("400G modules",)


# Tiers, reach, refusals


def test_the_fewest_tiers_of_128_port_switches_are_used():
    assert [EPS_1TO1.tiers(gpus) for gpus in (128, 136, 8192, 8200, 524288)] == [1, 2, 2, 3, 3]
    assert EPS_2TO1.reach(2) == 128 * 85  # 85 down and 43 up fill a leaf at 2:1


def test_one_switch_has_no_uplinks_so_oversubscription_changes_nothing():
    assert cost_usd(EPS_1TO1.bill(128), A) == cost_usd(EPS_3TO1.bill(128), A) == 128 * (1499 + 2 * 659 + 1090)


def test_a_third_tier_adds_the_same_links_once_more():
    two, three = EPS_1TO1.bill(8192), EPS_1TO1.bill(8200)
    assert (two.switch_ports / 8192, three.switch_ports / 8200) == (3, 5)


def test_more_than_three_tiers_are_refused():
    with pytest.raises(OutOfRange, match=r"524,296 GPUs are beyond three tiers.*524,288"):
        EPS_1TO1.bill(524296)


@pytest.mark.parametrize("ports_per_pair", [1, 2])
@pytest.mark.parametrize("optics", ["fr4", "dr4"])
def test_one_stage_of_384_port_planes_reaches_3072_gpus(optics, ports_per_pair):
    fabric = CircuitDesign(optics, ports_per_pair)
    assert fabric.bill(3072).gpus == fabric.reach == 3072
    with pytest.raises(OutOfRange, match=r"3,080 GPUs are beyond one OCS stage.*one GPU position.*at most 3,072"):
        fabric.bill(3080)


def test_192_port_planes_reach_half_and_the_refusal_names_the_bigger_plane():
    with pytest.raises(OutOfRange, match=r"at most 1,536 GPUs or 384-port planes"):
        CircuitDesign(plane_ports=192).bill(1544)


def test_two_ports_per_pair_need_two_switches_per_gpu_position():
    assert [CircuitDesign("fr4", 1).planes, CircuitDesign("fr4", 2).planes] == [8, 16]
    assert CircuitDesign("fr4", 2).bill(3072, whole_switches=True).ocs_switches == 16


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: EPS_2TO1.bill(0), "GPUs = 0 is out of range"),
        (lambda: EPS_2TO1.bill(-8), "GPUs = -8 is out of range"),
        (lambda: EPS_2TO1.bill(100), "not a whole number of 8-GPU nodes; the next one is 104"),
        (lambda: EPS_2TO1.bill(2.5), "GPUs = 2.5 is not a whole number"),
        (lambda: PacketDesign(uplinks=0), "uplinks per rack = 0 is out of range"),
        (lambda: PacketDesign(uplinks=33), "uplinks per rack = 33 is out of range.*no more than one per GPU"),
        (lambda: CircuitDesign(ports_per_pair=3), "OCS ports per fibre pair = 3 is out of range.*two fibres"),
        (lambda: CircuitDesign(optics="sr4"), "optics 'sr4' is not one of fr4, dr4"),
        (lambda: CircuitDesign(plane_ports=320), "plane ports = 320 is not one of 192, 384"),
        (lambda: EPS_2TO1.bill(256, whole_switches=True, cabling="half"), "leaf cabling 'half'"),
    ],
)
def test_values_outside_their_physical_range_are_refused(build, message):
    with pytest.raises(OutOfRange, match=message):
        build()


# Whole switches


@pytest.mark.parametrize(("book", "printed"), [(A, "1.06"), (B, "1.08")])
def test_whole_switches_with_full_leaves_give_1_06_to_1_08_for_1_1_over_2_1_at_256_gpus(book, printed):
    row = cost_row(EPS_1TO1, 256, book, Basis(whole_switches=True))
    assert f"{row.ratio_to_eps_2to1.value:.2f}" == printed


def test_256_gpus_take_four_leaves_and_two_spines_at_1_1_and_at_2_1():
    # 2:1: 85 GPUs a leaf, so four leaves of 43 uplinks = 172, more than one spine has ports.
    bills = [fabric.bill(256, whole_switches=True) for fabric in (EPS_1TO1, EPS_2TO1)]
    assert [bill.switches for bill in bills] == [6, 6]
    assert [bill.modules_400g for bill in bills] == [2 * 256 + 2 * 256, 2 * 256 + 2 * 172]


def test_cabling_only_the_needed_uplinks_saves_a_spine_at_2_1():
    bill = EPS_2TO1.bill(256, whole_switches=True, cabling="needed")
    assert (bill.switches, bill.modules_400g) == (5, 2 * 256 + 2 * 128)


def test_one_whole_switch_joins_128_gpus_without_links():
    bill = EPS_2TO1.bill(64, whole_switches=True)
    assert (bill.switches, bill.switch_ports, bill.modules_400g) == (1, 128, 2 * 64)


def test_whole_1_1_boxes_that_are_full_cost_what_their_ports_cost():
    # 8,192 GPUs fill 128 leaves and 64 spines; 524,288 fill a three-tier fat tree.
    for gpus in (8192, 524288):
        assert cost_usd(EPS_1TO1.bill(gpus, whole_switches=True), A) == cost_usd(EPS_1TO1.bill(gpus), A)
    assert EPS_1TO1.bill(8192, whole_switches=True).switches == 128 + 64
    assert EPS_1TO1.bill(524288, whole_switches=True).switches == 8192 + 8192 + 4096


def test_a_circuit_switch_holds_as_many_whole_planes_as_its_ports_allow():
    boxes = [CircuitDesign("fr4", 1).bill(gpus, whole_switches=True).ocs_switches for gpus in (256, 1024, 1536, 1544)]
    # 32 ports a plane: all 8 in one box of 384; 128 ports: 3 a box; 192: 2; 193: 1.
    assert boxes == [1, 3, 4, 8]


@given(fabrics, nodes)
def test_whole_switches_have_room_for_every_port_they_replace(fabric, node_count):
    gpus = 8 * node_count
    port, whole = fabric.bill(gpus), fabric.bill(gpus, whole_switches=True)
    assert whole.switch_ports >= port.switch_ports
    assert whole.ocs_ports >= port.ocs_ports
    assert whole.modules_400g >= port.modules_400g


# Properties


@given(fabrics, nodes, nodes, st.booleans(), st.sampled_from((A, B)))
def test_cost_grows_with_gpus(fabric, one, other, whole, book):
    assume(one != other)
    fewer, more = sorted((one, other))
    small, large = (cost_usd(fabric.bill(8 * count, whole_switches=whole), book) for count in (fewer, more))
    assert small < large


@given(st.integers(17, 384), st.integers(2, 32), st.sampled_from((A, B)))
def test_cost_falls_with_oversubscription_once_there_are_uplinks(node_count, uplinks, book):
    gpus = 8 * node_count
    more, fewer = (cost_usd(PacketDesign(uplinks=count).bill(gpus), book) for count in (uplinks, uplinks - 1))
    assert fewer < more


PRICES = [
    "prices_usd.nic_400g",
    "prices_usd.module_400g",
    "prices_usd.switch_port_400g",
    "prices_usd.ocs_port",
    "control_network.nic_100g",
    "control_network.module_100g",
    "control_network.switch_port_100g",
]


@given(fabrics, nodes, st.sampled_from(PRICES), st.floats(0, 1e5), st.floats(0, 1e5))
def test_cost_is_linear_in_each_price(fabric, node_count, key, low_usd, high_usd):
    bill = fabric.bill(8 * node_count)
    low, middle, high = (
        cost_usd(bill, A.with_value(key, usd)) for usd in (low_usd, (low_usd + high_usd) / 2, high_usd)
    )
    assert middle == pytest.approx((low + high) / 2)
    assert (low <= high) == (low_usd <= high_usd) or low == pytest.approx(high)


@given(st.sampled_from(PRICES[:4]), st.floats(1, 1e4))
def test_the_slope_of_a_price_is_the_number_of_parts_bought(key, extra_usd):
    bill = PacketDesign(uplinks=16).bill(256)
    parts = dict(zip(PRICES, (256, 2 * 256 + 256, 256 + 256, 0), strict=False))
    before = dict(A.quotes())[key].value
    grown = cost_usd(bill, A.with_value(key, before + extra_usd)) - cost_usd(bill, A)
    assert grown == pytest.approx(parts[key] * extra_usd, abs=1e-6)


# Inferred prices


def test_every_figure_an_inferred_price_enters_carries_its_bounds():
    per_gpu = cost_row(CircuitDesign("fr4", 2), 256, B).cost_usd_per_gpu
    assert per_gpu.inferred
    assert per_gpu.low == pytest.approx(1450 + 1.47 * 680 + 1040 + 100)
    assert per_gpu.high == pytest.approx(1550 + 1.47 * 730 + 1040 + 190)


def test_a_figure_no_inferred_price_moves_is_not_called_inferred():
    assert not any(row.cost_usd.inferred for row in cost_rows(default_fabrics(), [256], [A]))
    assert not cost_row(EPS_2TO1, 256, B).ratio_to_eps_2to1.inferred


@given(fabrics, st.tuples(*[st.floats(0, 1)] * 3))
def test_no_inferred_prices_within_their_bounds_leave_the_printed_range(fabric, position):
    row = cost_row(fabric, 256, B)
    book = B
    for (key, quote), at in zip(B.inferred().items(), position, strict=True):
        book = book.with_value(key, quote.inferred.low + at * (quote.inferred.high - quote.inferred.low))
    found = ratio(fabric, EPS_2TO1, book)
    assert row.ratio_to_eps_2to1.low - 1e-9 <= found <= row.ratio_to_eps_2to1.high + 1e-9
