"""The Vagrantfile as Vagrant reads it, and the script it runs in the machine. No machine is started here."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def vagrant(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("vagrant") is None:
        pytest.skip("vagrant is not installed: apt-get install vagrant")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_VM_")}
    return subprocess.run(
        ["vagrant", *arguments], cwd=ROOT, env={**env, **environment}, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=60,
    )  # fmt: skip


def test_the_vagrantfile_parses() -> None:
    if shutil.which("ruby") is None:
        pytest.skip("ruby is not installed: apt-get install ruby")
    done = subprocess.run(["ruby", "-wc", "Vagrantfile"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Syntax OK\n", "")


def test_vagrant_accepts_it_with_every_variable_set(tmp_path: Path) -> None:
    # `validate --ignore-provider` asks vagrant-libvirt for a connection it has not; tests/vm/test_chain.py has libvirt
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n")
    settings = {"BOX": "mine", "CPUS": "4", "MEMORY_MIB": "8192", "PROVIDER": "virtualbox", "SYNC": "virtualbox"}
    settings |= {"LIBVIRT_DRIVER": "qemu", "CA_BUNDLE": str(bundle)}
    variables = {f"HELIOGRAPH_VM_{key}": value for key, value in settings.items()}
    done = vagrant("validate", "--ignore-provider", **variables)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("CPUS", "many", "a whole number of at least 1"),
        ("MEMORY_MIB", "512", "a whole number of at least 1024"),
        ("SYNC", "rsync", "virtiofs"),
        ("CA_BUNDLE", "/nonexistent", "a PEM file that exists"),
    ],
)
def test_a_value_it_cannot_use_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    done = vagrant("validate", "--ignore-provider", **{f"HELIOGRAPH_VM_{name}": value})
    assert done.returncode != 0
    assert f"HELIOGRAPH_VM_{name}={value}" in done.stderr
    assert allowed in done.stderr


@pytest.mark.parametrize("name", ["provision.sh", "guest", "fetch.sh"])
def test_the_scripts_parse(name: str) -> None:
    done = subprocess.run(["bash", "-n", f"scripts/vm/{name}"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("status", [0, 7])
def test_provisioning_is_the_set_up_with_its_output_and_its_exit_status(tmp_path: Path, status: int) -> None:
    launcher = tmp_path / "heliograph"
    launcher.write_text(f'#!/bin/bash\necho "the launcher: $*"; echo "its last words" >&2; exit {status}\n')
    launcher.chmod(0o755)
    done = subprocess.run([str(ROOT / "scripts/vm/provision.sh"), str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (status, "the launcher: setup\n", "its last words\n")
