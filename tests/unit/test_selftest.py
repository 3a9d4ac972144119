"""The client measures a stub of known delay, and a client that adds to it is found out."""

from __future__ import annotations

import time

import pytest

from emulation.agents.gateway import GatewayAgent
from emulation.doctor import selftest
from emulation.doctor.selftest import SelfTestError, client_error


@pytest.mark.timed
def test_the_client_adds_little_to_a_delay_that_is_known():
    found = client_error(delay_s=0.300, requests=20, spacing_s=0.01)
    assert found.requests == 20
    # two sends and two receipts; less than nothing would be a wrong clock, the delay itself one not subtracted
    assert 0 < found.median_s < 0.1
    assert found.median_s <= found.p99_s <= found.largest_s
    assert "the client measures a stub of known delay" in found.sentence()


def test_a_client_that_adds_twenty_milliseconds_is_found_out(monkeypatch):
    settle = GatewayAgent._on_message

    def slowly(self, instance, message):
        time.sleep(0.020)
        settle(self, instance, message)

    monkeypatch.setattr(GatewayAgent, "_on_message", slowly)
    assert client_error(delay_s=0.010, requests=5, spacing_s=0.05).median_s > 0.020


def test_a_stub_that_cannot_answer_is_an_error_not_a_figure(monkeypatch):
    monkeypatch.setattr(selftest._Stub, "_answer", lambda self: None)
    monkeypatch.setattr(selftest, "PATIENCE_S", 0.5)
    with pytest.raises(SelfTestError):
        client_error(requests=2)
