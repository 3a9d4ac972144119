"""Machines of this tier: how a booted one is asked."""

import json
from typing import Any

import pytest

from scripts.vm.boot import CannotBoot, boot


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a booted machine reports of the module's PARTS of kernel_datapath.py. Each module boots one of its own, so
    that two of them can run side by side: an emulated processor takes one real one."""
    exchange = tmp_path_factory.mktemp("exchange")
    command = [".venv/bin/python", "tests/vm/kernel_datapath.py", "/exchange/result.json", *request.module.PARTS]
    try:
        ended = boot(command, exchange, timeout_s=1200, report=print)
    except CannotBoot as error:
        pytest.skip(f"no machine can be booted here: {error}")
    assert ended.status == 0, ended.console[-4000:]
    return dict(json.loads((exchange / "result.json").read_text()))
