"""The whole chain, from nothing to artifacts on this side: a box of Debian's packages, `vagrant up` with libvirt and
an emulated processor, the set-up in the machine, a run, `destroy`. `sudo ./heliograph test --vm`: up to 20 minutes."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("vagrant", "libvirtd", "virtlogd", "virsh", "qemu-system-x86_64", "mmdebstrap", "dnsmasq", "rsync")
PACKAGES = (
    "vagrant vagrant-libvirt libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils dnsmasq-base mmdebstrap "
    "fdisk rsync"
)
KEYS = "/usr/share/rubygems-integration/all/gems/vagrant-*/keys/vagrant.pub"
BOX = "heliograph-test/debian12"
SOCKET = Path("/run/libvirt/libvirt-sock")
FORWARDS = Path("/proc/sys/net/ipv4/ip_forward")
RUN = "experiments/datapaths.yaml --set workload.window_s=4"
#: A stalled qemu driver (a /dev/kvm that does not work, probed by another user) costs 4 s a call.
QEMU_CONF = '\nuser = "root"\ngroup = "root"\n'

pytestmark = pytest.mark.skipif(
    os.environ.get("HELIOGRAPH_TEST_CHAIN") != "1", reason="takes up to 20 minutes: sudo ./heliograph test --vm"
)


def run(*command: str, timeout_s: float, environment: dict[str, str] | None = None) -> str:
    """A step of the chain, its output shown as it comes and returned; fails with it. Nothing of it outlives it."""
    began_s = time.monotonic()
    print(f"\n== {' '.join(command)}", flush=True)
    said = []
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as step:  # fmt: skip
        assert step.stdout is not None
        late = threading.Timer(timeout_s, end, [step])  # a step that hangs says nothing more
        late.start()
        try:
            for line in step.stdout:
                print(line, end="", flush=True)
                said.append(line)
            step.wait()
        except BaseException:
            end(step)
            raise
        finally:
            late.cancel()
    took_s = time.monotonic() - began_s
    print(f"== exit status {step.returncode} after {took_s:.0f} s", flush=True)
    assert took_s < timeout_s, f"{command[0]} took more than {timeout_s} s: {''.join(said[-40:])}"
    assert step.returncode == 0, "".join(said[-40:])
    return "".join(said)


def end(step: subprocess.Popen[str], patience_s: float = 20) -> None:
    """The step and all that it started in its session: told to end, then killed."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(step.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(patience_s)


@contextlib.contextmanager
def libvirt(scratch: Path) -> Iterator[None]:
    """A running libvirtd: this machine's, or one of our own that ends with us and sees a configuration of its own."""
    if SOCKET.exists():
        yield
        return
    conf = Path("/etc/libvirt/qemu.conf")
    own = scratch / "qemu.conf"
    own.write_text(conf.read_text() + QEMU_CONF)
    place = 'mount --bind "$1" "$2" && exec libvirtd'
    ours = ("setpriv", "--pdeathsig", "TERM")
    mounted = ("unshare", "--mount", "--propagation=private", "bash", "-c", place, "libvirtd", str(own), str(conf))
    forwards = FORWARDS.read_text()  # libvirt turns it on for its networks, and leaves it on
    # sessions of their own: a Ctrl-C must not end them before the machine is destroyed
    daemons = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        for command in ((*ours, "virtlogd"), (*ours, *mounted))
    ]
    try:
        deadline_s = time.monotonic() + 30
        while not SOCKET.exists():
            assert daemons[1].poll() is None, "libvirtd has ended; in a chroot no mount of its own can be had"
            assert time.monotonic() < deadline_s, "libvirtd did not start"
            time.sleep(0.2)
        yield
    finally:
        try:
            for daemon in reversed(daemons):
                daemon.terminate()
                daemon.wait(20)
        finally:
            FORWARDS.write_text(forwards)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    if os.geteuid() != 0:
        pytest.skip("libvirt and a chroot need root: sudo ./heliograph test --vm")
    if absent := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(absent)}. apt-get install --no-install-recommends {PACKAGES}")
    bundle = os.environ.get("HELIOGRAPH_VM_CA_BUNDLE")
    with libvirt(tmp_path):
        yield {
            "VAGRANT_HOME": str(tmp_path / "home"),
            "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot"),
            "HELIOGRAPH_VM_BOX": BOX,
            "HELIOGRAPH_VM_PROVIDER": "libvirt",
            "HELIOGRAPH_VM_LIBVIRT_DRIVER": "qemu",
            "HELIOGRAPH_VM_SYNC": "9p",
            "HELIOGRAPH_VM_MEMORY_MIB": "2048",
            **({"HELIOGRAPH_VM_CA_BUNDLE": bundle} if bundle else {}),
        }


def test_from_nothing_to_artifacts_on_this_side(environment: dict[str, str], tmp_path: Path) -> None:
    box = tmp_path / "debian12.box"
    (key,) = sorted(Path("/").glob(KEYS.lstrip("/")))[-1:]
    results = f"results/runs/chain-{os.getpid()}"

    def vagrant(*words: str, timeout_s: float) -> str:
        return run("vagrant", *words, timeout_s=timeout_s, environment=environment)

    run("scripts/vm/box.sh", str(box), str(key), timeout_s=600)
    vagrant("box", "add", "--name", BOX, str(box), timeout_s=120)
    try:
        vagrant("up", "--provider=libvirt", timeout_s=1200)
        assert "system (kernel module" in vagrant(
            "ssh", "-c", "cd heliograph && sudo ./heliograph doctor", timeout_s=120
        )
        try:
            command = f"cd heliograph && sudo ./heliograph run {RUN} --artifact-dir {results}; test $? -le 3"
            vagrant("ssh", "-c", command, timeout_s=600)
            summary = json.loads((ROOT / results / "summary.json").read_text())
            assert [entry["name"] for entry in summary["runs"]] == ["eps-2to1-ecmp", "ocs-25ms"]
            assert all(entry["requests"]["completed"] == entry["requests"]["offered"] > 0 for entry in summary["runs"])
            fidelity = json.loads((ROOT / results / "ocs-25ms/seed1/fidelity.json").read_text())
            assert fidelity["datapath"] == "system"
        finally:
            shutil.rmtree(ROOT / results, ignore_errors=True)
    finally:
        vagrant("destroy", "-f", timeout_s=120)
        image = f"{BOX.replace('/', '-VAGRANTSLASH-')}_vagrant_box_image_0_box.img"
        subprocess.run(["virsh", "vol-delete", "--pool", "default", image], capture_output=True)
