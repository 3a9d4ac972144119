"""A part that does not answer is noticed, and why it could not be asked is said."""

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from emulation.linux.liveness import LivenessWatch, ask_unixctl
from process.interrupts import Interrupted, interruptible, shielded


def until(condition, timeout_s=30.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_part_that_answers_is_no_trouble():
    asked = []
    watch = LivenessWatch({"a": lambda: asked.append(1)}, silence_s=30)
    until(lambda: len(asked) > 1)
    assert watch.troubles() == []
    watch.stop()


def test_a_part_that_hangs_is_named_and_holds_up_no_other():
    release, asked = threading.Event(), []
    watch = LivenessWatch({"stuck": lambda: release.wait(60), "fine": lambda: asked.append(1)}, silence_s=0.2)
    until(watch.troubles)
    (trouble,) = watch.troubles()
    assert trouble.startswith("stuck has not answered for ")
    until(lambda: len(asked) > 1)
    release.set()
    until(lambda: not watch.troubles())
    watch.stop()


def test_a_part_is_asked_from_when_it_is_added():
    watch = LivenessWatch({}, silence_s=0.2)
    assert watch.troubles() == []
    release = threading.Event()
    watch.add("late", lambda: release.wait(60))
    until(watch.troubles)
    release.set()
    until(lambda: not watch.troubles())
    watch.stop()


def test_a_part_that_cannot_be_asked_is_named_with_the_reason():
    def refuse():
        raise ConnectionRefusedError("nobody there")

    watch = LivenessWatch({"gone": refuse}, silence_s=0.2)
    until(watch.troubles)
    assert "(nobody there)" in watch.troubles()[0]
    watch.stop()


def serve(path: Path, answer: bytes | None) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def reply():
        connection, _ = server.accept()
        connection.recv(4096)
        if answer is None:
            time.sleep(1.0)
        else:
            connection.sendall(answer[:5])
            connection.sendall(answer[5:])
        connection.close()

    threading.Thread(target=reply, daemon=True).start()
    return server


def test_a_daemon_says_its_version_over_its_control_socket(tmp_path):
    with serve(tmp_path / "ctl", json.dumps({"id": 0, "result": "ovs-vswitchd 3.1", "error": None}).encode()):
        assert ask_unixctl(tmp_path / "ctl") == "ovs-vswitchd 3.1"


def test_a_frozen_daemon_takes_the_connection_and_no_more(tmp_path):
    with serve(tmp_path / "ctl", None), pytest.raises(TimeoutError):
        ask_unixctl(tmp_path / "ctl", timeout_s=0.1)


def test_a_daemon_that_closes_is_no_answer(tmp_path):
    with serve(tmp_path / "ctl", b'{"id": 0'), pytest.raises(ConnectionError, match="closed after"):
        ask_unixctl(tmp_path / "ctl")


def signalled(number: int) -> None:
    """A signal to ourselves, and time for its handler."""
    os.kill(os.getpid(), number)
    time.sleep(0.01)


def test_a_signal_interrupts_once():
    with interruptible():
        with pytest.raises(Interrupted, match="SIGTERM"):
            signalled(signal.SIGTERM)
        signalled(signal.SIGTERM)  # ignored: the tear-down goes on


class Doomed:
    """Its destructor gets a signal: what a handler raises there, the interpreter drops."""

    def __del__(self) -> None:
        signalled(signal.SIGTERM)


def test_an_interrupt_that_the_interpreter_drops_is_raised_again():
    def run() -> None:
        Doomed()
        for _ in range(500):
            time.sleep(0.01)

    with interruptible(), pytest.raises(Interrupted, match="SIGTERM"):
        run()


def test_an_interrupt_that_is_dropped_waits_for_a_shielded_block_too():
    done = []

    def tear_down() -> None:
        Doomed()
        with shielded():
            time.sleep(0.2)
            done.append("to the end")

    with interruptible(), pytest.raises(Interrupted, match="SIGTERM"):
        tear_down()
    assert done == ["to the end"]


def test_a_signal_in_a_shielded_block_waits_for_its_end():
    done = []

    def tear_down() -> None:
        with shielded():
            signalled(signal.SIGHUP)
            signalled(signal.SIGTERM)  # an impatient second one does not become the reason
            with shielded():
                done.append("inside")
            done.append("to the end")

    with interruptible(), pytest.raises(Interrupted, match="SIGHUP") as error:
        tear_down()
    assert done == ["inside", "to the end"]
    assert error.value.number == signal.SIGHUP


def test_the_handlers_before_are_back_afterwards():
    def mine(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGHUP, mine)
    try:
        with pytest.raises(Interrupted), interruptible():
            signalled(signal.SIGINT)
        assert signal.getsignal(signal.SIGHUP) is mine
    finally:
        signal.signal(signal.SIGHUP, before)
