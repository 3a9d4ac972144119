"""The set-up of system packages in a Debian 12 that has nothing: their names, that they suffice, and a second call.

The root is made by mmdebstrap and entered by chroot, each in namespaces of its own: no mount outlives its command,
and no process either, however it ends.
The Python environment is not made here: CI makes it from nothing in its first step, by the same script.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The root shares the kernel with this machine: its own /proc, the machine's /dev, and how packages are reached.
ENTER = """
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys" || exit 125
exec chroot "$1" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/bash -c "$2"
"""
#: Mounts and processes that end with the first of them, and that one with us.
OWN = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")


class FreshRoot:
    """A bare Debian 12 in a folder, with the launcher and its scripts in /heliograph."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        enter = [*OWN, "bash", "-c", ENTER, "enter", str(self.path), command]
        return subprocess.run(enter, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)


def _bootstrap(path: Path) -> FreshRoot:
    # `apt` is the least that a set-up starts from; what nobody reads here is not unpacked, and nothing outlives a crash
    unread = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    make = ["mmdebstrap", "--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io", *unread, "bookworm", str(path)]
    done = subprocess.run([*OWN, *make], capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"mmdebstrap cannot make a root here: {done.stderr.strip().splitlines()[-1:]}")
    for name in ("heliograph", "requirements.txt", "constraints.txt", "scripts"):
        source, target = ROOT / name, path / "heliograph" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    shutil.copy("/etc/resolv.conf", path / "etc/resolv.conf")
    for proxy in Path("/etc/apt/apt.conf.d").glob("*proxy*"):
        shutil.copy(proxy, path / "etc/apt/apt.conf.d")
    return FreshRoot(path)


@pytest.fixture(scope="module")
def fresh_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshRoot]:
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed: apt-get install mmdebstrap")
    if subprocess.run([*OWN, "true"], capture_output=True).returncode:
        pytest.skip("no mounts of its own here: this root is itself entered by chroot, or has not the privilege")
    folder = tmp_path_factory.mktemp("debian")
    try:
        yield _bootstrap(folder / "root")
    finally:
        shutil.rmtree(folder)  # 300 MB, which pytest would keep for three sessions; nothing of it is mounted any more


def test_the_set_up_of_a_bare_debian_brings_every_program_a_run_starts_and_a_second_call_does_nothing(
    fresh_root: FreshRoot,
) -> None:
    begins_with = fresh_root.run("command -v ovs-vswitchd tc python3")
    assert begins_with.stdout == "", "the root is not bare"
    first = fresh_root.run("/heliograph/scripts/setup.sh system")
    assert first.returncode == 0, first.stderr
    assert "installing system packages" in first.stderr

    missing = 'here=/heliograph; source "$here/scripts/state.sh"; missing_binaries; python3 -c "import venv, ensurepip"'
    found = fresh_root.run(missing)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")

    # The kernel's modules are the running kernel's business: a root without their tree is set up all the same.
    assert fresh_root.run("modprobe openvswitch").returncode != 0
    # What would start with the machine is left off, and services are no longer held back.
    assert not (fresh_root.path / "usr/sbin/policy-rc.d").exists()

    stamps = 'stat -c "%n %y" /var/lib/dpkg/status /var/lib/apt/lists /usr/sbin/ovs-vswitchd'
    before = fresh_root.run(stamps).stdout
    second = fresh_root.run("/heliograph/scripts/setup.sh system")
    assert second.returncode == 0
    assert re.fullmatch(r"heliograph: set-up took \d+ s\n", second.stderr)  # not a step besides
    assert fresh_root.run(stamps).stdout == before


def test_nothing_of_a_root_stays_mounted(fresh_root: FreshRoot) -> None:
    fresh_root.run("true")
    assert str(fresh_root.path) not in Path("/proc/mounts").read_text()
