"""Whatever goes wrong while doctor looks is said in words, never as a traceback."""

from __future__ import annotations

import errno
import os
import select
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from commands import machine
from emulation.agents.wire import encode_line
from emulation.doctor import forecast as advice
from emulation.doctor import preflight, selftest
from emulation.doctor.selftest import SelfTestError, client_error
from emulation.network.shaping import Shape

DEMO = Path(__file__).resolve().parents[2] / "experiments" / "demo.yaml"


def deaf(theirs: socket.socket) -> None:
    """It ends before it is told to start: EPIPE."""
    theirs.shutdown(socket.SHUT_RD)
    theirs.sendall(encode_line({"type": "ready"}))


def in_between(theirs: socket.socket) -> None:
    """It ends with what it was told unread: ECONNRESET."""
    theirs.sendall(encode_line({"type": "ready"}))
    select.select([theirs], [], [], 30)


@pytest.mark.parametrize(("dies", "number"), [(deaf, errno.EPIPE), (in_between, errno.ECONNRESET)])
def test_a_gateway_that_dies_is_an_error_in_words(monkeypatch, dies, number):
    def gateway(config, ours, theirs):
        ours.close()
        dies(theirs)
        os._exit(1)

    monkeypatch.setattr(selftest, "_be_gateway", gateway)
    with pytest.raises(SelfTestError, match=f"the gateway has ended: {os.strerror(number)}"):
        client_error(requests=2)


def test_a_full_disk_is_said_and_the_table_stands(monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp")

    monkeypatch.setattr(selftest, "client_error", full)
    monkeypatch.setattr(preflight, "capabilities", list)
    done = CliRunner().invoke(app, ["doctor"])
    assert "the client could not be tested: [Errno 28] No space left on device" in done.output
    assert done.exit_code == 0, done.exception


def test_in_a_pipe_a_capability_is_one_line(monkeypatch):
    why = "carries the circuits' packets, and many a word more than a terminal of eighty columns has room for"
    found = preflight.Capability("datapath", "ok", "system (kernel module openvswitch)", why, "", False)
    monkeypatch.setattr(preflight, "capabilities", lambda: [found])
    monkeypatch.setattr(selftest, "client_error", lambda: selftest.ClientError(1, 0.0, 0.0, 0.0))
    output = CliRunner().invoke(app, ["doctor"]).output
    assert any("system (kernel module openvswitch)" in line and why in line for line in output.splitlines())


def no_room(*_: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def too_slow(*_: object) -> None:
    Shape(1.0)


@pytest.mark.parametrize(("deed", "words"), [(no_room, "Too many open files"), (too_slow, "goodput of 1.0 bit/s")])
def test_advice_that_cannot_be_had_ends_in_words(monkeypatch, tmp_path, deed, words):
    monkeypatch.setattr(machine, "need_root", lambda why: None)
    monkeypatch.setattr(preflight, "capabilities", list)
    monkeypatch.setattr("emulation.linux.ledger.BASE", tmp_path)
    monkeypatch.setattr(advice, "_busy_percent", lambda wait_s: 0.0)
    monkeypatch.setattr(advice, "measure", deed)
    monkeypatch.setattr(selftest, "client_error", lambda: selftest.ClientError(1, 0.0, 0.0, 0.0))
    done = CliRunner().invoke(app, ["doctor", "--experiment", str(DEMO)])
    assert done.exit_code == 1, done.exception
    assert words in done.output
    assert "everything that was built is removed" in done.output
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
