"""Runs a command under a stock Debian kernel, in this very checkout, without a disk image.

QEMU boots the kernel that `fetch.sh` unpacked, always by software emulation: a /dev/kvm may exist and still not boot a
stock kernel. The guest's clock counts its instructions (-icount), 2 ns for each, and follows ours while it is idle:
whoever else uses this machine makes a run there take longer, and not its timers late. That needs one emulated processor
on one thread; more of them on threads of their own would be little faster.

The guest's root is the host's file system, read only over 9p, under a tmpfs that takes every write; only the exchange
folder is written through. So the guest has the checkout, its .venv and the system packages of the host, with another
kernel: the one whose modules a Vagrant box brings.

    .venv/bin/python -m scripts.vm.boot [--exchange FOLDER] -- ./heliograph run experiments/datapaths.yaml

The exit status is the command's; 3 where this machine cannot boot one, 124 where it took too long. In the guest the
exchange folder is /exchange.
"""

from __future__ import annotations

import argparse
import os
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "vm"
CANNOT, TIMED_OUT = 3, 124
NICENESS = 10  # also under a caller that is nice: 20 would get nothing beside a busy suite
#: What the initramfs loads to find the host's file system; modprobe resolves what they need.
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_EXIT = "heliograph-vm: exit "


class CannotBoot(RuntimeError):
    """This machine cannot boot a stock kernel: the reason, in words for a skipped test."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended: its exit status, all of the serial console, wall seconds from QEMU's start to its end."""

    status: int
    console: str
    took_s: float


def fetch(cache: Path = CACHE) -> str:
    """Have QEMU, kernel and busybox in `cache`; returns the kernel's release. Raises CannotBoot."""
    command = [str(HERE / "fetch.sh"), str(cache)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == CANNOT:
        raise CannotBoot(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise RuntimeError(f"scripts/vm/fetch.sh ended with status {done.returncode}: {done.stderr[-2000:]}")
    return (cache / "ready").read_text().strip()


def boot(
    command: Sequence[str],
    exchange: Path,
    *,
    cache: Path = CACHE,
    timeout_s: float = 240,
    memory_mib: int = 2048,
    cpus: int = 1,
    report: Callable[[str], None] = lambda line: None,
) -> Ended:
    """Run `command` in the checkout under a stock kernel; `report` gets each line of the console as it comes.

    exchange: a folder of the host that is /exchange in the guest. Raises CannotBoot where QEMU or the kernel cannot be
    had, TimeoutError after `timeout_s` wall seconds and RuntimeError where the machine went down without a status; the
    console is in their text.
    """
    release = fetch(cache)
    exchange.mkdir(parents=True, exist_ok=True)
    (exchange / "command").write_text(f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}\n")
    with tempfile.TemporaryDirectory(prefix="heliograph-vm-") as folder:
        initramfs = _initramfs(Path(folder), cache, release)
        arguments = _qemu(cache, initramfs, exchange, memory_mib, cpus)
        began_s = time.monotonic()
        console = _console(arguments, _libraries(cache), began_s + timeout_s, report)
    took_s = time.monotonic() - began_s
    for line in reversed(console.splitlines()):
        if line.startswith(_EXIT):
            return Ended(int(line.removeprefix(_EXIT)), console, took_s)
    if took_s >= timeout_s:
        raise TimeoutError(f"the machine did not end within {timeout_s:g} s; its console:\n{console[-3000:]}")
    raise RuntimeError(f"the machine went down without a status; its console:\n{console[-3000:]}")


def _initramfs(folder: Path, cache: Path, release: str) -> Path:
    """A cpio archive with busybox, /init and the modules that find the host's file system, in the order to load."""
    tree = folder / "tree"
    for name in ("bin", "proc", "sys", "dev", "host", "writes", "new", "modules"):
        (tree / name).mkdir(parents=True)
    busybox = cache / "tools" / "bin" / "busybox"
    shutil.copy(busybox, tree / "bin" / "busybox")
    shutil.copy(HERE / "init", tree / "init")
    order: dict[str, None] = {}
    for module in MODULES:
        command = ["modprobe", "-d", str(cache / "kernel"), "-S", release, "--show-depends", module]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment()).stdout
        for line in shown.splitlines():
            kind, _, path = line.strip().partition(" ")
            if kind == "insmod":  # "builtin" needs nothing
                shutil.copy(path, tree / "modules")
                order[Path(path).name] = None
    (tree / "modules" / "order").write_text("".join(f"{name}\n" for name in order))
    archive = folder / "initramfs"
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    with archive.open("wb") as file:
        subprocess.run(
            [str(busybox), "cpio", "-o", "-H", "newc"],
            input=names.encode(),
            stdout=file,
            stderr=subprocess.PIPE,
            cwd=tree,
            check=True,
        )
    return archive


def _qemu(cache: Path, initramfs: Path, exchange: Path, memory_mib: int, cpus: int) -> list[str]:
    tools, kernel = cache / "tools", cache / "kernel"
    # mitigations guard against others on the same processor, and cost an emulated one half of its speed
    words = f"console=ttyS0 quiet panic=-1 mitigations=off heliograph.guest={HERE / 'guest'}"
    arguments = [str(tools / "usr/bin/qemu-system-x86_64"), "-L", str(tools / "usr/share/qemu")]
    # shift=1: 2 ns an instruction, the pace of a slow real core
    arguments += ["-L", str(tools / "usr/share/seabios"), "-accel", "tcg,thread=single", "-icount", "shift=1"]
    arguments += ["-cpu", "max", "-machine", "q35", "-smp", str(cpus), "-m", f"{memory_mib}M", "-nodefaults"]
    arguments += ["-no-reboot", "-display", "none", "-serial", "stdio", "-nic", "none"]
    arguments += ["-kernel", str(kernel / "vmlinuz"), "-initrd", str(initramfs), "-append", words]
    for tag, path, access in (
        ("root", Path("/"), "readonly=on,multidevs=remap,"),
        ("modules", kernel / "lib/modules", "readonly=on,"),
        ("exchange", exchange.resolve(), ""),
    ):
        # a comma in a path is written twice in QEMU's option lists
        place = str(path).replace(",", ",,")
        arguments += ["-virtfs", f"local,path={place},mount_tag={tag},security_model=none,{access}id={tag}"]
    return arguments


def _libraries(cache: Path) -> dict[str, str]:
    folders = [str(cache / "tools" / part / "x86_64-linux-gnu") for part in ("usr/lib", "lib")]
    return {**_environment(), "LD_LIBRARY_PATH": ":".join(folders)}


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


def _console(
    arguments: Sequence[str], environment: dict[str, str], deadline_s: float, report: Callable[[str], None]
) -> str:
    """Run QEMU to its end or to `deadline_s`, and return what its serial port and QEMU itself said."""
    # Emulation takes a whole core: whoever else works on this machine goes first. It ends with us, however we end.
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "nice", "-n", str(max(0, NICENESS - os.nice(0))), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    ) as machine, selectors.DefaultSelector() as ready:  # fmt: skip
        assert machine.stdout is not None
        ready.register(machine.stdout, selectors.EVENT_READ)
        said, line = b"", b""
        try:
            while (left_s := deadline_s - time.monotonic()) > 0:
                if not ready.select(left_s):
                    break
                piece = os.read(machine.stdout.fileno(), 65536)
                if not piece:
                    break
                said += piece
                *whole, line = (line + piece).split(b"\n")
                for text in whole:
                    report(text.decode(errors="replace").rstrip("\r"))
        finally:
            machine.kill()
    return said.decode(errors="replace").replace("\r", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="boot", description="Run a command under a stock Debian kernel (QEMU).")
    parser.add_argument("--exchange", type=Path, help="is /exchange in the guest (default: a temporary folder)")
    parser.add_argument("--timeout-s", type=float, default=600, help="wall seconds, then the machine is switched off")
    parser.add_argument("--memory-mib", type=int, default=2048, help="memory of the guest")
    parser.add_argument("command", nargs="+", help="the command, run in the checkout")
    options = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="heliograph-exchange-") as folder:
        try:
            ended = boot(
                options.command,
                options.exchange or Path(folder),
                timeout_s=options.timeout_s,
                memory_mib=options.memory_mib,
                report=lambda line: print(f"[{time.monotonic() - began_s:5.1f} s] {line}", flush=True),
            )
        except CannotBoot as error:
            print(f"boot: {error}", file=sys.stderr)
            return CANNOT
        except TimeoutError as error:
            print(f"boot: {error}", file=sys.stderr)
            return TIMED_OUT
    print(f"boot: exit status {ended.status} after {ended.took_s:.1f} s", file=sys.stderr)
    return ended.status


if __name__ == "__main__":
    sys.exit(main())
