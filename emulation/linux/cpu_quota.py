"""The CPU quota of this process's control group and of those above it: what a container, a service or a batch system
allows, and how often it was used up. Control groups of version 1 and 2.

A group that has used up its quota stands still until the next period (100 ms mostly), on idle cores: nothing but its
`cpu.stat` tells of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC_SELF = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Quota:
    """Of one group: its folder, the cores that it may use, and what was counted since it was made: periods in which it
    was throttled, and for how long all its processors together were."""

    folder: Path
    cores: float
    throttled_periods: int
    throttled_s: float

    @property
    def setting(self) -> str:
        """The file that holds the quota."""
        return str(self.folder / ("cpu.max" if (self.folder / "cpu.max").exists() else "cpu.cfs_quota_us"))

    def allowed(self) -> str:
        """In words."""
        return (
            f"control group {self.folder} may use {self.cores:.3g} of a core"
            if self.cores < 1
            else (f"control group {self.folder} may use {self.cores:.3g} cores")
        )

    def remedy(self) -> str:
        """In words."""
        return (
            f"raise the quota ({self.setting}; `docker run --cpus`, `CPUQuota=` of a systemd unit, `limits.cpu` of a "
            "pod), or run outside of it"
        )


def quotas() -> list[Quota]:
    """Those of our own group and of the groups above it that have one, our own first. Empty where none has, or none can
    be read."""
    found = []
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # a group without a quota has no such file
            if (cores := _cores(folder)) is not None:
                found.append(Quota(folder, cores, *_throttled(folder)))
    return found


def since(before: list[Quota], now: list[Quota]) -> Quota | None:
    """The quota that was used up for longest between two readings, with what was counted between them; None where none
    was."""
    known = {quota.folder: quota for quota in before}
    used_up = [
        Quota(
            quota.folder,
            quota.cores,
            quota.throttled_periods - known[quota.folder].throttled_periods,
            quota.throttled_s - known[quota.folder].throttled_s,
        )
        for quota in now
        if quota.folder in known
    ]
    return max((each for each in used_up if each.throttled_periods), key=lambda each: each.throttled_s, default=None)


def _folders() -> list[Path]:
    """Our own group's folder and those above it, of the hierarchy that has the cpu controller."""
    try:
        groups = [line.split(":", 2) for line in (PROC_SELF / "cgroup").read_text().splitlines()]
        mounts = [line.split(" - ", 1) for line in (PROC_SELF / "mountinfo").read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, group in groups:
        for before, after in mounts:
            kind, _, options = after.split(" ", 2)
            version_1 = kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options.split(",")
            version_2 = kind == "cgroup2" and not controllers
            if version_1 or version_2:
                root, place = before.split(" ")[3:5]
                found += _upwards(Path(_unescaped(place)), root, group)
                break
    return list(dict.fromkeys(found))


def _upwards(place: Path, root: str, group: str) -> list[Path]:
    """The folders of a group and of those above it, of a hierarchy whose `root` is mounted at `place`."""
    try:
        inside = PurePosixPath(group).relative_to(root)
    except ValueError:  # mounted for another control group namespace: what is there is all we can see
        inside = PurePosixPath(".")
    if ".." in inside.parts:
        inside = PurePosixPath(".")
    own = place / inside
    return [own, *(parent for parent in own.parents if place in (parent, *parent.parents))]


def _unescaped(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _cores(folder: Path) -> float | None:
    """The quota over its period; None where the group has none."""
    if (version_2 := folder / "cpu.max").exists():
        quota, period = version_2.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    quota_us = int((folder / "cpu.cfs_quota_us").read_text())
    return None if quota_us < 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text())


def _throttled(folder: Path) -> tuple[int, float]:
    counts = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    if "throttled_usec" in counts:
        return int(counts["nr_throttled"]), int(counts["throttled_usec"]) / 1e6
    return int(counts["nr_throttled"]), int(counts["throttled_time"]) / 1e9  # version 1
