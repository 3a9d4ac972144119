"""What does not scale, with its ratio to what it competes with: the demo's medians in closed form."""

from __future__ import annotations

import dataclasses

import pytest

from emulation.scale import ScaleModel
from emulation.verdict.unscaled import Quantities, unscaled

#: 546,406 bytes at 36 Mbit/s: 121.4 ms (VECTORS, V1).
DEMO = Quantities(
    transfer_bytes=546_406, link_bytes_per_s=4_500_000, prefill_s=0.190868, reconfiguration_s=0.025,
    round_trip_s=0.0007, control_s=0.002, window_bytes=64_000, queue_bytes=267_669, rto_min_s=0.040,
    new_connections=True,
)  # fmt: skip


def found(quantities: Quantities, scale: ScaleModel) -> dict:
    return {each.name: each for each in unscaled(quantities, scale)}


def test_every_thing_that_does_not_scale_is_held_against_what_it_competes_with():
    each = found(DEMO, ScaleModel(1e-4))
    assert {name: one.ratio for name, one in each.items()} == pytest.approx(
        {
            "one segment (MTU)": 1448 / 546_406,
            "the last GSO packet, which a shaper lets out free": 9000 / 546_406,
            "TCP's initial window": 14_480 / 546_406,
            "round trip of a KV path": 0.0007 / 0.121424,
            "a KV connection's window, which may stand in a queue": 0.0142222 / 0.121424,
            "a full queue of a port, shared by several windows": 0.0594820 / 0.121424,
            "TCP's least retransmission timeout": 0.040 / 0.121424,
            "the controller's answer to an event": 0.002 / 0.025,
        },
        rel=1e-4,
    )
    assert each["one segment (MTU)"].real == pytest.approx(14_480_000)


def test_dilation_makes_times_smaller_beside_what_they_compete_with_and_bytes_not():
    slow = Quantities(
        transfer_bytes=546_406, link_bytes_per_s=1_125_000, reconfiguration_s=0.1, round_trip_s=0.0007, control_s=0.002
    )
    each, undilated = found(slow, ScaleModel(1e-4, 4.0)), found(DEMO, ScaleModel(1e-4))
    for name in ("round trip of a KV path", "the controller's answer to an event"):
        assert each[name].ratio == pytest.approx(undilated[name].ratio / 4)
        assert each[name].real == pytest.approx(undilated[name].real / 4)
    assert each["one segment (MTU)"].ratio == undilated["one segment (MTU)"].ratio


def test_kept_connections_pay_no_initial_window_and_without_circuits_control_competes_with_the_prefill():
    kept = Quantities(transfer_bytes=546_406, link_bytes_per_s=4_500_000, prefill_s=0.2, control_s=0.002)
    each = found(kept, ScaleModel(1e-4))
    assert "TCP's initial window" not in each
    assert each["the controller's answer to an event"].against == "a prefill"


@pytest.mark.parametrize(("follows", "remedy"), [(False, "scale.time_dilation"), (True, "scale.rate_scale")])
def test_a_timeout_that_grows_with_the_window_is_not_made_smaller_by_dilation(follows, remedy):
    slow = dataclasses.replace(DEMO, rto_min_s=0.16, rto_follows_window=follows)
    each = found(slow, ScaleModel(1e-4, 4.0))["TCP's least retransmission timeout"]
    assert f"a larger {remedy} makes it smaller" in each.remedy
