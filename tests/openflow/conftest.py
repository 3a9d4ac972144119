"""Ryu without its manager: what the launcher prepares comes before any app; a logged error fails its test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import controllers.ryu_app.manager  # noqa: F401  (prepares eventlet for Ryu's WSGI module)


@pytest.fixture(autouse=True)
def _no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A greenlet's exception is only logged, and must not pass unseen; a test that provokes one clears `caplog`."""
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors, errors
