"""The scale benchmark: rows of different settings never share a table, and an interrupt waits for the run it stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.scale_benchmark import main, setting
from sweeps.axes import SweepError
from sweeps.grid import GridDirectory

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 30.0

#: Takes half a second to remove what it made, and says when it has.
RUN = """
import sys, time
try:
    print("runs", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)
    open(sys.argv[1], "w").close()
"""
BENCHMARK = """
import sys
from pathlib import Path
from process.interrupts import Interrupted, interruptible
from scripts.scale_benchmark import attend
try:
    with interruptible():
        attend([sys.executable, "-c", sys.argv[1], sys.argv[2]], Path(sys.argv[3]))
except Interrupted:
    sys.exit(100 + Path(sys.argv[2]).exists())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_handed_on_and_waits_for_the_tear_down(number: signal.Signals, tmp_path: Path) -> None:
    removed, log = tmp_path / "removed", tmp_path / "log"
    words = [sys.executable, "-c", BENCHMARK, RUN, str(removed), str(log)]
    with subprocess.Popen(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}) as benchmark:
        until_s = time.monotonic() + HANG_S
        while not (log.exists() and "runs" in log.read_text()):
            assert time.monotonic() < until_s, "the run did not start"
            time.sleep(0.02)
        benchmark.send_signal(number)
        assert benchmark.wait(HANG_S) == 101, "it ended before the run had removed what it made"


def test_a_table_is_gone_on_with_only_in_the_same_setting(tmp_path: Path) -> None:
    GridDirectory.create_or_resume("scale", setting(10.0), tmp_path)
    (tmp_path / "scale.csv").touch()
    assert GridDirectory.create_or_resume("scale", setting(10.0), tmp_path).path == tmp_path
    with pytest.raises(SweepError, match="differs in window_s"):
        GridDirectory.create_or_resume("scale", setting(5.0), tmp_path)
    elsewhere = setting(10.0) | {"machine": setting(10.0)["machine"] | {"cores": 1024}}
    with pytest.raises(SweepError, match="differs in machine"):
        GridDirectory.create_or_resume("scale", elsewhere, tmp_path)
    with pytest.raises(SweepError, match="another version of the code"):
        GridDirectory.create_or_resume("scale", setting(10.0) | {"source": "other"}, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="refused earlier without root")
def test_rows_that_nobody_knows_the_setting_of_are_not_gone_on_with(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "scale.csv").touch()
    monkeypatch.setattr(sys, "argv", ["scale_benchmark", "--artifact-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert "is not empty" in capsys.readouterr().err
