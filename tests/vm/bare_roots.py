"""A system that has nothing, in a folder: made by mmdebstrap and entered by chroot, each in namespaces of its own. No
mount outlives its command, and no process either, however it ends.

It shares the kernel with this machine, so its programs are tried on it, and its kernel is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The root shares the kernel with this machine: its own /proc, the machine's /dev, and how packages are reached.
ENTER = """
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --rbind /sys "$1/sys" || exit 125
if [[ $3 == apart ]]; then ip link set lo up && mount -t tmpfs tmpfs "$1/run" || exit 125; fi
exec chroot "$1" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "${@:4}" /bin/bash -c "$2"
"""
#: Mounts and processes that end with the first of them, and that one with us.
OWN = ("unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")
#: How this machine reaches its package index.
INDEX = ("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY")
#: What this machine trusts; the root's own bundle is written anew when its ca-certificates are installed.
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TRUSTED = "/etc/ssl/this-machine.crt"
#: A quiet machine takes half a minute, most of it for downloads.
MAKE_S = 900
NOT_THE_CHECKOUT = (".git", ".venv", ".cache", "runs", "__pycache__", ".*_cache", ".hypothesis", ".vagrant")


@dataclass(frozen=True)
class System:
    """suite: as its archive names it. archive: mmdebstrap's further words, where it is not Debian's."""

    name: str
    suite: str
    archive: tuple[str, ...] = ()


class BareRoot:
    """A system in a folder, with the checkout in /heliograph."""

    def __init__(self, system: System, path: Path) -> None:
        self.system, self.path = system, path

    def run(self, command: str, *, apart: bool = False, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        """apart: in a network of its own, which holds nothing, and with a /run of its own: no run of this machine is
        met there, and no package index."""
        words = [*OWN, *(["--net"] if apart else [])]
        index = [f"{name}={os.environ[name]}" for name in INDEX if name in os.environ]
        if (self.path / TRUSTED[1:]).exists():
            index += [f"PIP_CERT={TRUSTED}", f"SSL_CERT_FILE={TRUSTED}"]
        enter = [*words, "bash", "-c", ENTER, "enter", str(self.path), command, "apart" if apart else "", *index]
        return subprocess.run(enter, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s)


def make_root(system: System, path: Path) -> BareRoot:
    """Skips the test, with the reason, where such a root cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("a chroot needs root")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed: apt-get install mmdebstrap")
    if subprocess.run([*OWN, "true"], capture_output=True).returncode:
        pytest.skip("no mounts of its own here: this root is itself entered by chroot, or has not the privilege")
    # `apt` is the least that a set-up starts from; what nobody reads here is not unpacked, and nothing outlives a crash
    unread = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    words = ["mmdebstrap", "--quiet", "--variant=apt", "--dpkgopt=force-unsafe-io", *unread, system.suite, str(path)]
    try:
        done = subprocess.run([*OWN, *words, *system.archive], capture_output=True, text=True, timeout=MAKE_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"mmdebstrap does not make {system.name} here within {MAKE_S} s")
    if done.returncode:
        pytest.skip(f"mmdebstrap cannot make {system.name} here: {done.stderr.strip().splitlines()[-1:]}")
    shutil.copytree(ROOT, path / "heliograph", ignore=shutil.ignore_patterns(*NOT_THE_CHECKOUT), symlinks=True)
    for file in (Path("/etc/resolv.conf"), Path("/etc/pip.conf")):
        if file.exists():
            shutil.copy(file, path / "etc")
    for proxy in Path("/etc/apt/apt.conf.d").glob("*proxy*"):
        shutil.copy(proxy, path / "etc/apt/apt.conf.d")
    if CERTIFICATES.exists():
        (path / TRUSTED[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CERTIFICATES, path / TRUSTED[1:])
    return BareRoot(system, path)
