"""A user's own class that exits, at import, at construction or when it is asked: a refusal or a fault with its name,
never the end of the command without a word."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_cases import ROOT, heliograph, small

from controllers.core.demand import Demand
from controllers.core.placement import PacketPlacement
from inputs import plugin_file
from inputs.plugin_fault import PluginFault, blamed
from inputs.plugin_file import PluginError
from process.interrupts import NUMBERS, Interrupted, interruptible

#: Each ends a process, or a generator, in silence.
EXITS = [
    "raise SystemExit(0)",
    "import sys; sys.exit()",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise StopIteration",
    "raise type('Mine', (BaseException,), {})('mine')",
    "raise type('Mine', (Exception,), {'__str__': lambda self: 1 / 0})",
    "quit()",
]


def source(where: str, statement: str) -> str:
    at = {place: f"        {statement}\n" if place == where else "" for place in ("built", "asked")}
    return (
        (f"{statement}\n" if where == "imported" else "")
        + f"class Mine:\n    def __init__(self):\n{at['built']}        pass\n"
        + f"    def choose(self, demand, candidates, now_s):\n{at['asked']}        return candidates[0].decode\n"
    )


@pytest.mark.parametrize("statement", EXITS)
@pytest.mark.parametrize("where", ["imported", "built"])
def test_one_that_exits_before_the_run_is_refused_in_one_line(tmp_path, where, statement):
    from controllers.decode_choices import load as decode_choice

    (tmp_path / "mine.py").write_text(source(where, statement))
    with pytest.raises(ValueError, match=r"^decode_choice '.*mine.py:Mine': .*mine.py:\d+: \w+") as refused:
        decode_choice.load(f"{tmp_path}/mine.py:Mine", 1)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("statement", EXITS)
def test_one_that_exits_when_it_is_asked_is_a_fault_with_its_name(tmp_path, statement):
    from controllers.decode_choices import load as decode_choice

    (tmp_path / "mine.py").write_text(source("asked", statement))
    choice = decode_choice.load(f"{tmp_path}/mine.py:Mine", 1)
    core = PacketPlacement({"p0": ("d0",)}, transfer="layerwise", decode_choice=choice)
    core.admitted(Demand("r0", "t", "", "p0", 50_000_000, 5_000_000, 62_500, 0.1, True), 0.0)
    with pytest.raises(PluginFault, match=r"decode choice .*mine.py:Mine failed"):
        core.prefill_started("r0", 0.1, 0.0)


@pytest.mark.parametrize("where", ["imported", "built", "asked"])
@pytest.mark.parametrize("command", ["run --dry-run", "simulate", "sweep"])
def test_a_command_says_so_and_never_ends_with_0(tmp_path, command, where):
    if where == "asked" and command != "simulate":
        pytest.skip("nothing is asked where nothing is run; a sweep's cells have a test of their own")
    (tmp_path / "mine.py").write_text(source(where, "import sys; sys.exit(0)"))
    name, *options = command.split()
    words = [name, small(tmp_path, "mine:Mine"), *options]
    done = heliograph(*words, *([] if options else ["--artifact-dir", tmp_path / "out"]), cwd=tmp_path)
    assert done.returncode == (1 if where == "asked" else 2), done.stdout + done.stderr
    assert "mine.py:Mine" in done.stderr
    assert "SystemExit" in done.stderr
    assert "commands/" not in done.stderr, "a traceback of our own"


@pytest.mark.parametrize("where", ["imported", "built", "asked"])
def test_so_it_is_with_a_commit_rule(tmp_path, where):
    at = {place: "raise SystemExit(0)" if place == where else "pass" for place in ("imported", "built", "asked")}
    (tmp_path / "mine.py").write_text(
        "from controllers.core.reservations import Reservations\n"
        f"{at['imported']}\n"
        "class Mine(Reservations):\n"
        f"    def __init__(self, *given, **named):\n        {at['built']}\n        super().__init__(*given, **named)\n"
        f"    def due(self, now_s):\n        {at['asked']}\n        return super().due(now_s)\n"
    )
    experiment = small(tmp_path, "least-loaded")
    words = ["--set", "fabrics.1.commit=mine:Mine", "--artifact-dir", tmp_path / "out"]
    done = heliograph("simulate", experiment, *words, cwd=tmp_path)
    assert done.returncode == (1 if where == "asked" else 2), done.stdout + done.stderr
    assert "mine.py:Mine" in done.stderr
    assert "SystemExit" in done.stderr


def test_what_an_answer_does_when_it_is_compared_is_the_plug_in_s_fault_too(tmp_path):
    from controllers.decode_choices import load as decode_choice

    (tmp_path / "mine.py").write_text(
        "class Answer:\n    def __eq__(self, other):\n        raise SystemExit(0)\n    __hash__ = None\n"
        "class Mine:\n    def choose(self, demand, candidates, now_s):\n        return Answer()\n"
    )
    choice = decode_choice.load(f"{tmp_path}/mine.py:Mine", 1)
    core = PacketPlacement({"p0": ("d0",)}, transfer="layerwise", decode_choice=choice)
    core.admitted(Demand("r0", "t", "", "p0", 50_000_000, 5_000_000, 62_500, 0.1, True), 0.0)
    with pytest.raises(PluginFault, match="SystemExit"):
        core.prefill_started("r0", 0.1, 0.0)


# -- a signal is none of the plug-in's ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_strikes_in_a_plug_in_is_what_it_was(number):
    with interruptible(), pytest.raises(Interrupted), blamed("mine"):
        signal.raise_signal(number)


def test_ctrl_c_while_a_plug_in_is_imported_interrupts_the_command(tmp_path: Path):
    (tmp_path / "mine.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    script = "from process import interrupts; interrupts.take_over()\n"
    script += f"from inputs import plugin_file; plugin_file.load({str(tmp_path / 'mine.py:Mine')!r})"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert b"PluginError" not in errors


def test_a_module_that_failed_is_tried_again_and_leaves_no_half_of_itself(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit(0)\n")
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(PluginError, match="SystemExit"):
            plugin_file.load(f"{tmp_path}/mine.py:Mine")
    assert set(sys.modules) == before
