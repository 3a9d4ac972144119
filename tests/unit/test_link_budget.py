"""The optical link budget: the published figures, the standard's own closure, and properties."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from economics.link_budget import (
    CIRCUIT_SWITCHES,
    LightPath,
    budget,
    circuit_switch,
    largest_loss_db,
    largest_tdecq_db,
    margin_db,
)
from economics.optics import OPTICS, TDECQ_MAX_DB
from economics.ranges import OutOfRange
from economics.requirements import down, requirements, spliced

DR4, FR4 = OPTICS["dr4"], OPTICS["fr4"]
both = st.sampled_from((DR4, FR4))
tdecqs_db = st.floats(0, TDECQ_MAX_DB)
losses_db = st.floats(0, 12)


def test_the_worst_path_of_four_connectors_and_a_384_port_ocs_loses_5_95_db():
    assert LightPath().loss_db == pytest.approx(5.95)
    assert LightPath().parts_db == pytest.approx({"connectors": 3.0, "fibre": 0.25, "splices": 0, "ocs": 2.7})
    assert CIRCUIT_SWITCHES[384].loss_db == 2.7


def test_the_channel_allocations_are_3_and_4_db_and_the_worst_path_is_above_both():
    assert (DR4.allocation_db, FR4.allocation_db) == (3, 4)
    over_db = [budget(each, LightPath()).loss_over_allocation_db for each in (DR4, FR4)]
    assert over_db == pytest.approx([2.95, 1.95])


@pytest.mark.parametrize(("optics", "exact_db", "printed"), [(DR4, 1.55, 1.5), (FR4, 1.75, 1.7)])
def test_two_db_of_margin_at_maximum_launch_allow_a_tdecq_of_1_5_db_with_dr4_and_1_7_with_fr4(
    optics, exact_db, printed
):
    found_db = largest_tdecq_db(optics, 5.95, wanted_margin_db=2)
    assert found_db == pytest.approx(exact_db)
    assert down(found_db) == printed


@pytest.mark.parametrize("optics", [DR4, FR4])
def test_with_the_multi_path_interference_penalty_both_allow_1_45_db(optics):
    assert largest_tdecq_db(optics, 5.95, wanted_margin_db=2, with_mpi=True) == pytest.approx(1.45)


@pytest.mark.parametrize(("optics", "printed_db"), [(DR4, 4.1), (FR4, 4.3)])
def test_any_compliant_tdecq_keeps_two_db_on_a_path_of_4_1_db_with_dr4_and_4_3_with_fr4(optics, printed_db):
    found_db = largest_loss_db(optics, wanted_margin_db=2)
    assert found_db == pytest.approx(printed_db)
    assert down(found_db) == printed_db


def test_sensitivity_is_flat_for_a_good_eye_and_falls_with_tdecq_after_1_4_db():
    assert [DR4.sensitivity_dbm(tdecq_db) for tdecq_db in (0, 1.4, 3.4)] == pytest.approx([-3.9, -3.9, -1.9])
    assert [FR4.sensitivity_dbm(tdecq_db) for tdecq_db in (0, 1.4, 3.4)] == pytest.approx([-4.6, -4.6, -2.6])


@given(both, st.floats(1.4, TDECQ_MAX_DB), losses_db)
def test_the_standard_closes_its_own_budget_at_the_lowest_compliant_launch(optics, tdecq_db, loss_db):
    lowest_dbm = optics.launch_min_dbm(tdecq_db)
    margin = margin_db(optics, loss_db, tdecq_db=tdecq_db, launch_oma_dbm=lowest_dbm, with_mpi=True)
    assert margin == pytest.approx(optics.allocation_db - loss_db, abs=1e-9)


paths = st.builds(
    LightPath,
    connectors=st.integers(0, 8),
    connector_loss_db=st.floats(0.01, 1),
    fibre_m=st.floats(0, 400),
    fibre_loss_db_per_km=st.floats(0.1, 1),
    splices=st.integers(0, 8),
    splice_loss_db=st.floats(0.01, 0.5),
    ocs_loss_db=st.floats(0, 4),
)


@given(both, paths, tdecqs_db, st.sampled_from(["connectors", "splices", "fibre_m", "ocs_loss_db"]))
def test_margin_falls_with_each_element_added(optics, path, tdecq_db, element):
    longer = dataclasses.replace(path, **{element: getattr(path, element) + 1})
    before_db, after_db = (margin_db(optics, each.loss_db, tdecq_db=tdecq_db) for each in (path, longer))
    added_db = {
        "connectors": path.connector_loss_db,
        "splices": path.splice_loss_db,
        "fibre_m": path.fibre_loss_db_per_km / 1000,
        "ocs_loss_db": 1,
    }[element]
    assert after_db < before_db
    assert before_db - after_db == pytest.approx(added_db, abs=1e-9)


@given(both, losses_db, st.floats(0, 6), st.booleans())
def test_the_largest_tdecq_leaves_the_wanted_margin_and_a_larger_one_does_not(optics, loss_db, wanted_db, with_mpi):
    found_db = largest_tdecq_db(optics, loss_db, wanted_margin_db=wanted_db, with_mpi=with_mpi)
    if found_db is None:
        assert margin_db(optics, loss_db, tdecq_db=0, with_mpi=with_mpi) < wanted_db
        return
    assert margin_db(optics, loss_db, tdecq_db=found_db, with_mpi=with_mpi) >= wanted_db - 1e-6
    if found_db < TDECQ_MAX_DB - 0.01:
        assert margin_db(optics, loss_db, tdecq_db=found_db + 0.01, with_mpi=with_mpi) < wanted_db


@given(both, tdecqs_db, st.floats(0, 5), st.booleans())
def test_the_largest_loss_leaves_exactly_the_wanted_margin(optics, tdecq_db, wanted_db, with_mpi):
    found_db = largest_loss_db(optics, wanted_margin_db=wanted_db, tdecq_db=tdecq_db, with_mpi=with_mpi)
    assert found_db is not None
    assert margin_db(optics, found_db, tdecq_db=tdecq_db, with_mpi=with_mpi) == pytest.approx(wanted_db, abs=1e-9)


def test_a_path_no_perfect_eye_crosses_has_no_largest_tdecq():
    assert largest_tdecq_db(DR4, 8.2, wanted_margin_db=0) is None
    # 8.1 dB is the last: the floor is met exactly, by every TDECQ up to where the sensitivity starts to fall.
    assert largest_tdecq_db(DR4, 8.1, wanted_margin_db=0) == pytest.approx(1.4)


def test_a_margin_beyond_a_lossless_path_has_no_largest_loss():
    assert largest_loss_db(DR4, wanted_margin_db=7) is None


def test_a_low_launch_bounds_the_tdecq_it_is_compliant_with():
    # -0.5 dBm may only be launched with a TDECQ of up to 1.7 dB (launch - TDECQ >= -2.2 dBm).
    assert largest_tdecq_db(DR4, 0.1, wanted_margin_db=0, launch_oma_dbm=-0.5) == pytest.approx(1.7)
    found = budget(DR4, LightPath(connectors=0, ocs_loss_db=0), tdecq_db=1.0, launch_oma_dbm=-0.5)
    assert found.largest_loss_at_worst_tdecq_db is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LightPath(connectors=-1), "connectors = -1 is out of range"),
        (lambda: LightPath(connector_loss_db=-0.1), "connector loss = -0.1 dB is out of range.*cannot amplify"),
        (lambda: LightPath(fibre_m=float("nan")), "fibre length = nan is not a finite number"),
        (lambda: LightPath(ocs_loss_db=float("inf")), "OCS loss = inf is not a finite number"),
        (lambda: LightPath(splices=1.5), "splices = 1.5 is not a whole number"),
        (lambda: DR4.sensitivity_dbm(3.5), "TDECQ = 3.5 dB is out of range: it must be from 0 to 3.4 dB"),
        (lambda: DR4.sensitivity_dbm(-0.1), "TDECQ = -0.1 dB is out of range"),
        (lambda: margin_db(FR4, 1, tdecq_db=1, launch_oma_dbm=4.0), "launch OMA.*FR4 = 4 dBm is out of range.*3.7"),
        (lambda: margin_db(FR4, 1, tdecq_db=3.4, launch_oma_dbm=1.0), "from 1.7 to 3.7 dBm.*at TDECQ 3.4 dB"),
        (lambda: margin_db(FR4, -1, tdecq_db=1), "path loss = -1 dB is out of range"),
        (lambda: largest_tdecq_db(FR4, 1, wanted_margin_db=-1), "wanted margin = -1 dB is out of range"),
        (lambda: budget(DR4, LightPath(fibre_m=501)), "fibre length of 400GBASE-DR4 = 501 m is out of range.*500"),
        (lambda: circuit_switch(320), "320 ports, only of 192 and 384; give its loss in dB instead"),
    ],
)
def test_values_outside_their_physical_range_are_refused(build, message):
    with pytest.raises(OutOfRange, match=message):
        build()


def test_the_loss_of_the_192_port_switch_is_marked_inferred_and_that_of_384_ports_is_not():
    assert (circuit_switch(192).loss_inferred, circuit_switch(384).loss_inferred) == (True, False)


def test_the_requirements_are_one_pair_50_ms_and_2_db_and_only_wdm_meets_the_first():
    rows = requirements((DR4, FR4), LightPath(), ocs_ports=384)
    assert [(row.required, row.subject, row.offered, row.met) for row in rows] == [
        (1, "400GBASE-DR4", 4, "no"),
        (1, "400GBASE-FR4", 1, "yes"),
        (50, "384-port OCS", 50, "yes"),
        (2, "400GBASE-DR4", 1.5, "if"),
        (2, "400GBASE-FR4", 1.7, "if"),
    ]


def test_splicing_the_ocs_fibres_leaves_the_ocs_what_the_rest_of_the_path_does_not_take():
    assert spliced(LightPath()).loss_db == pytest.approx(2 * 0.75 + 0.25 + 2 * 0.3 + 2.7)
    rows = requirements((DR4, FR4), LightPath(), ocs_ports=None)
    assert "up to 4.1 dB of path (OCS fibres spliced: leaves 1.75 dB for the OCS)" in rows[2].how
    assert "up to 4.3 dB of path (OCS fibres spliced: leaves 1.95 dB for the OCS)" in rows[3].how


def test_a_path_too_lossy_for_any_transmitter_does_not_meet_the_margin():
    row = requirements((DR4,), LightPath(connectors=8), ocs_ports=None)[-1]
    assert (row.met, row.offered) == ("no", None)


def test_a_short_spliced_path_meets_the_margin_with_any_compliant_transmitter():
    path = LightPath(connectors=2, splices=2, ocs_loss_db=1.5)
    row = requirements((DR4,), path, ocs_ports=None)[-1]
    assert (row.met, row.offered) == ("yes", 3.4)
    # 4.1 - (2 x 0.75 + 2 x 0.3 + 0.25): spliced already, so nothing is spliced twice.
    assert row.how == "at maximum launch, any compliant TDECQ on up to 4.1 dB of path (leaves 1.75 dB for the OCS)"


def test_limits_are_rounded_down_but_not_by_binary_noise():
    assert [down(1.55), down(1.5499999999999998, 2), down(4.2 - 2 - (3.4 - 5.3)), down(1.999)] == [1.5, 1.55, 4.1, 1.9]
