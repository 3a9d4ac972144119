"""The scale model: bytes, rates and durations scale together."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulation.scale import ScaleModel

DEMO = ScaleModel(1e-4)


def test_the_median_head_and_tail_become_the_bytes_of_the_worked_timelines():
    assert DEMO.emulated_bytes(5_373_952_000) == 537_395
    assert DEMO.emulated_bytes(90_112_000) == 9_011
    assert DEMO.emulated_bytes(1_126_400) == 113


def test_a_400_gbit_link_at_90_percent_becomes_36_mbit_of_goodput():
    assert DEMO.emulated_bytes_per_s(45e9) * 8 == pytest.approx(36e6)


def test_dilation_slows_links_and_stretches_durations_alike():
    slow = ScaleModel(1e-4, 10)
    assert slow.emulated_bytes_per_s(45e9) * 8 == pytest.approx(3.6e6)
    assert slow.wall_s(0.025) == pytest.approx(0.25)
    assert slow.real_s(slow.wall_s(0.1)) == pytest.approx(0.1)


@given(st.floats(1e-6, 1), st.floats(1, 100), st.floats(1e6, 1e11), st.floats(1e6, 1e11))
def test_a_transfer_takes_its_real_time_after_conversion_back(rate_scale, dilation, real_bytes, real_rate):
    scale = ScaleModel(rate_scale, dilation)
    wall_s = scale.emulated_bytes(real_bytes) / scale.emulated_bytes_per_s(real_rate)
    quantum_s = 1 / scale.emulated_bytes_per_s(real_rate) / dilation
    assert scale.real_s(wall_s) == pytest.approx(real_bytes / real_rate, abs=quantum_s)


@given(st.integers(0, 10**11), st.integers(0, 10**11))
def test_more_real_bytes_never_become_fewer_emulated_ones(a, b):
    low, high = sorted((a, b))
    assert DEMO.emulated_bytes(low) <= DEMO.emulated_bytes(high)


def test_something_never_becomes_nothing_and_nothing_stays_nothing():
    assert DEMO.emulated_bytes(1) == 1
    assert DEMO.emulated_bytes(0) == 0


@pytest.mark.parametrize("rate_scale", [0, -1, 1.5, math.nan, math.inf])
def test_a_rate_scale_outside_its_range_is_refused_with_its_value(rate_scale):
    with pytest.raises(ValueError, match=f"rate_scale is {rate_scale}"):
        ScaleModel(rate_scale)


@pytest.mark.parametrize("dilation", [0, 0.5, math.nan, math.inf])
def test_a_dilation_under_one_is_refused_with_its_value(dilation):
    with pytest.raises(ValueError, match=f"time_dilation is {dilation}"):
        ScaleModel(1e-4, dilation)


@pytest.mark.parametrize("real_bytes", [-1, math.nan, math.inf])
def test_impossible_byte_counts_are_refused(real_bytes):
    with pytest.raises(ValueError, match="real bytes"):
        DEMO.emulated_bytes(real_bytes)
