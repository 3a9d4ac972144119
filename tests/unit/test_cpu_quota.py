"""A CPU quota is named where it is what held a run up, by the verdict and by doctor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from emulation.doctor import preflight
from emulation.linux import cpu_quota
from emulation.linux.cpu_quota import Quota, quotas, since
from emulation.monitor.machine import MachineUse
from emulation.verdict.thresholds import busy_cause

ROOT = Path(__file__).resolve().parents[2]
IDLE = MachineUse(
    samples=10, cores_percent=[5.0, 5.0], all_cores_percent=5.0, p95_all_cores_percent=9.0, full_core_percent=0.0,
    steal_percent=0.0, foreign_percent=1.0, p95_foreign_percent=2.0, least_available_memory_bytes=1 << 30,
)  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str, str], Path]:
    """A machine whose control groups are files: version, our group, what of the hierarchy is mounted."""

    def made(version: int, group: str, root: str) -> Path:
        place = tmp_path / "cgroup"
        place.mkdir()
        kind, line = (
            ("cgroup2 cgroup2 rw", f"0::{group}")
            if version == 2
            else ("cgroup cgroup rw,cpu,cpuacct", f"4:cpu,cpuacct:{group}")
        )
        (tmp_path / "cgroup_of_self").mkdir()
        proc = tmp_path / "proc"
        proc.mkdir()
        (proc / "cgroup").write_text(f"9:memory:/elsewhere\n{line}\n")
        (proc / "mountinfo").write_text(f"30 1 0:1 / / rw - ext4 /dev/vda rw\n31 30 0:26 {root} {place} rw - {kind}\n")
        monkeypatch.setattr(cpu_quota, "PROC_SELF", proc)
        return place

    return made


def give(folder: Path, version: int, quota: str, throttled: int = 0, microseconds: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota} 100000\n")
        text = f"usage_usec 5\nnr_periods 900\nnr_throttled {throttled}\nthrottled_usec {microseconds}\n"
    else:
        (folder / "cpu.cfs_quota_us").write_text(f"{-1 if quota == 'max' else quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
        text = f"nr_periods 900\nnr_throttled {throttled}\nthrottled_time {1000 * microseconds}\n"
    (folder / "cpu.stat").write_text(text)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("group", "root", "inside"),
    [("/a/b", "/", "a/b"), ("/a/b", "/a", "b"), ("/", "/", ""), ("/../x", "/", ""), ("/elsewhere", "/a", "")],
    ids=["host", "bind", "root", "outside-of-our-namespace", "of-another-namespace"],
)
def test_the_quota_of_our_group_is_found(machine, version: int, group: str, root: str, inside: str) -> None:
    folder = machine(version, group, root) / inside
    give(folder, version, "12000", 481, 42_000_000)
    assert quotas() == [Quota(folder, 0.12, 481, 42.0)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_quota_further_up_holds_too_and_none_is_none(machine, version: int) -> None:
    place = machine(version, "/a/b/c", "/")
    give(place / "a" / "b" / "c", version, "max")
    give(place / "a" / "b", version, "150000", 3, 10)
    give(place / "a", version, "12000", 7, 20)
    assert [(quota.folder, quota.cores) for quota in quotas()] == [(place / "a" / "b", 1.5), (place / "a", 0.12)]


def test_what_cannot_be_read_is_no_quota(machine) -> None:
    place = machine(2, "/a", "/")
    (place / "a").mkdir()
    assert quotas() == []
    (place / "a" / "cpu.max").write_text("nonsense")
    assert quotas() == []


def test_what_was_counted_before_the_run_is_not_the_run_s() -> None:
    old = [Quota(Path("/q"), 0.12, 1000, 90.0), Quota(Path("/p"), 2.0, 0, 0.0)]
    now = [Quota(Path("/q"), 0.12, 1481, 132.0), Quota(Path("/p"), 2.0, 2, 0.1), Quota(Path("/new"), 1.0, 9, 99.0)]
    assert since(old, now) == Quota(Path("/q"), 0.12, 481, 42.0)
    assert since(now, now) is None


def test_the_verdict_names_the_quota_and_not_bursts_of_idle_cores() -> None:
    assert "in bursts" in busy_cause(IDLE)
    cause = busy_cause(replace(IDLE, throttled=Quota(Path("/sys/fs/cgroup/cpu/q"), 0.12, 481, 42.0)))
    assert cause.startswith(
        "control group /sys/fs/cgroup/cpu/q may use 0.12 of a core and was throttled in 481 periods, 42.0 s in all: "
        "raise the quota (/sys/fs/cgroup/cpu/q/cpu.cfs_quota_us; "
    )
    assert "in bursts" in busy_cause(replace(IDLE, throttled=Quota(Path("/q"), 1.9, 2, 0.01)))


@pytest.mark.parametrize(("cores", "state"), [(0.12, "degraded"), (4.0, "ok")])
def test_doctor_says_it_beforehand(monkeypatch: pytest.MonkeyPatch, cores: float, state: str) -> None:
    monkeypatch.setattr(preflight, "quotas", lambda: [Quota(Path("/q"), 8.0, 0, 0.0), Quota(Path("/p"), cores, 0, 0.0)])
    cap = preflight._cpu_quota()
    assert (cap.name, cap.state, cap.required) == ("CPU quota", state, False)
    assert "control group /p may use" in cap.value
    assert "raise the quota" in cap.remedy


@pytest.fixture
def group() -> Iterator[Path]:
    """A real control group of a tenth of a core."""
    for parent in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct"), Path("/sys/fs/cgroup")):
        folder = parent / f"heliograph-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text("10000 100000")
            else:
                (folder / "cpu.cfs_quota_us").write_text("10000")
        except OSError:
            folder.rmdir()
            continue
        yield folder
        for _ in range(100):  # a process that has just ended is in it for a moment
            try:
                folder.rmdir()
                return
            except OSError:
                time.sleep(0.02)
    else:
        pytest.skip("no control group with a quota can be made here")


def test_a_real_group_that_uses_up_its_quota_is_told_so(group: Path) -> None:
    program = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from emulation.linux.cpu_quota import quotas, since\n"
        "open(sys.argv[2] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "before = quotas(); end = time.monotonic() + 1\n"
        "while time.monotonic() < end: pass\n"
        "used_up = since(before, quotas())\n"
        "print(used_up.folder, used_up.cores, used_up.throttled_periods > 3, used_up.throttled_s > 0.1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(ROOT), str(group)], capture_output=True, text=True)
    assert done.stdout == f"{group} 0.1 True True\n", done
