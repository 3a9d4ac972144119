"""Set-up: made anew when stale, named where it fails, and nothing of the machine's own services changed."""

import contextlib
import os
import signal
import subprocess
import textwrap
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from checkouts import ROOT, Checkout
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet


def test_setup_of_a_set_up_checkout_does_nothing(ready: Checkout) -> None:
    done = ready.run("setup")
    assert (done.returncode, done.stdout) == (0, "")
    assert "was called" not in done.stderr


def test_an_environment_without_a_stamp_is_half_made_and_not_used(checkout: Checkout) -> None:
    checkout.set_up(stamped=False)
    done = checkout.run("cost", HELIOGRAPH_PYTHON=checkout.broken_python("no space left"))
    assert done.returncode == 1
    assert "cli" not in done.stdout


@pytest.mark.parametrize(
    "name", ["requirements.txt", "constraints.txt", "scripts/setup.sh", "scripts/ryu_build/sitecustomize.py"]
)
def test_a_changed_pin_or_recipe_makes_the_environment_stale(ready: Checkout, name: str) -> None:
    with (ready.path / name).open("a") as file:
        file.write("# changed\n")
    done = ready.run("cost", HELIOGRAPH_PYTHON=ready.broken_python("no space left"))
    assert done.returncode == 1
    assert "making .venv" in done.stderr


def test_another_interpreter_behind_the_environment_makes_it_stale(ready: Checkout) -> None:
    before = ready.state("fingerprint")
    (ready.path / ".venv/bin/python").unlink()
    (ready.path / ".venv/bin/python").symlink_to("/bin/sh")
    assert ready.state("fingerprint") != before


def test_a_step_that_fails_is_named_with_its_output_and_the_remedy(checkout: Checkout) -> None:
    done = checkout.run("cost", HELIOGRAPH_PYTHON=checkout.broken_python("no space left on device"))
    assert done.returncode == 1
    assert "set-up failed at: making .venv" in done.stderr
    assert "(exit status 3)" in done.stderr
    assert "    no space left on device" in done.stderr
    assert "remedy: rm -rf .venv" in done.stderr
    assert done.stdout == ""
    assert not (checkout.path / ".venv/.heliograph-venv").exists()


def test_a_remedy_that_did_not_help_is_not_given_again_without_a_word(checkout: Checkout) -> None:
    python = checkout.broken_python("no space left on device, 0x7f01 in /tmp/tmp.$RANDOM after $RANDOM s")
    first = checkout.run("cost", HELIOGRAPH_PYTHON=python)
    assert "the same way" not in first.stderr
    again = checkout.run("cost", HELIOGRAPH_PYTHON=python)
    assert again.returncode == 1
    assert "remedy: rm -rf .venv" in again.stderr
    assert "the set-up before failed the same way" in again.stderr
    assert "Try another Python" in again.stderr
    kept = checkout.path / ".cache/setup-failure.log"
    assert str(kept) in again.stderr
    assert "no space left on device" in kept.read_text()
    other = checkout.run("cost", HELIOGRAPH_PYTHON=checkout.broken_python("no such module"))
    assert "the same way" not in other.stderr


def test_no_python_twice_is_the_same_failure_and_a_set_up_that_ends_well_forgets_it(checkout: Checkout) -> None:
    python = str(checkout.program("python2", "exit 1"))
    said = [checkout.run("cost", HELIOGRAPH_PYTHON=python).stderr for _ in range(2)]
    assert ["the same way" in text for text in said] == [False, True]
    checkout.set_up()
    done = subprocess.run([str(checkout.path / "scripts/setup.sh"), "venv"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (checkout.path / ".cache/setup-failure.log").exists()


def test_what_is_imported_is_among_what_is_installed_at_the_same_version() -> None:
    imported, installed = (
        {line.strip() for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")}
        for name in ("requirements.txt", "constraints.txt")
    )
    assert imported - installed == set()


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_every_pin_is_a_release_for_every_python_that_is_named(version: str) -> None:
    """What is installed says which Pythons it is for; a pin for other Pythons only is judged by tests/vm."""
    refused = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pin = Requirement(line)
        if pin.marker and not pin.marker.evaluate({"python_version": version, "python_full_version": f"{version}.99"}):
            continue
        with contextlib.suppress(PackageNotFoundError):
            found = distribution(pin.name)
            wanted = SpecifierSet(found.metadata.get("Requires-Python", ""))
            if found.version in pin.specifier and f"{version}.99" not in wanted:
                refused.append(f"{line}: for Python {wanted}")
    assert refused == []


def test_no_usable_python_is_said_with_the_remedy(checkout: Checkout) -> None:
    done = checkout.run("cost", HELIOGRAPH_PYTHON=str(checkout.program("python2", "exit 1")))
    assert done.returncode == 1
    assert "found no Python 3.10 to 3.13 with venv" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


class Installation:
    """A root's set-up of a machine whose package manager is a script that tells whether services are held back."""

    def __init__(self, checkout: Checkout, tmp_path: Path) -> None:
        self.checkout, self.policy, self.seen = checkout, tmp_path / "policy-rc.d", tmp_path / "seen"
        checkout.user(0)
        checkout.set_up()
        checkout.edit("scripts/setup.sh", "policy=/usr/sbin/policy-rc.d", f"policy={self.policy}")
        checkout.edit("scripts/setup.sh", "[[ -d /run/systemd/system ]]", "true")
        checkout.program("systemctl", f'echo "systemctl $*" >>{self.seen}')
        checkout.program("dpkg-query", "exit 1")  # nothing is installed
        self.apt_exits(0)

    def apt_exits(self, status: int) -> None:
        self.checkout.program(
            "apt-get",
            textwrap.dedent(f"""\
            [[ " $* " == *" install "* ]] || exit 0
            ask() {{ if [[ -e {self.policy} ]]; then sh {self.policy} "$1" start; fi; echo "$1 $?" >>{self.seen}; }}
            ask openvswitch-switch.service; ask ssh.service
            echo "apt's last words"; exit {status}"""),
        )

    def run(self) -> subprocess.CompletedProcess[str]:
        script = f'export PATH={self.checkout.programs}:$PATH; exec "{self.checkout.path}/scripts/setup.sh" system'
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def interrupt_in_the_middle(self) -> subprocess.CompletedProcess[str]:
        """Ctrl-C while the packages go in: the whole process group gets the signal."""
        self.checkout.program(
            "apt-get", f'[[ " $* " != *" install "* ]] || {{ echo started >>{self.seen}; exec sleep 30; }}'
        )
        command = [
            "bash",
            "-c",
            f'export PATH={self.checkout.programs}:$PATH; exec "{self.checkout.path}/scripts/setup.sh" system',
        ]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
            deadline_s = time.monotonic() + 30
            while not self.seen.exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            held = self.policy.exists()
            os.killpg(running.pid, signal.SIGINT)
            _, stderr = running.communicate(timeout=60)
        assert held
        return subprocess.CompletedProcess(command, running.returncode, "", stderr)


@pytest.fixture
def installation(checkout: Checkout, tmp_path: Path) -> Installation:
    return Installation(checkout, tmp_path)


def test_open_vswitch_s_service_alone_is_kept_from_starting_and_only_while_its_package_goes_in(
    installation: Installation,
) -> None:
    done = installation.run()
    assert done.returncode == 0, done.stderr
    assert installation.seen.read_text().splitlines() == [
        "openvswitch-switch.service 101",
        "ssh.service 0",
        "systemctl disable openvswitch-switch.service",
    ]
    assert not installation.policy.exists()


def test_services_are_no_longer_held_back_when_the_installation_fails(installation: Installation) -> None:
    installation.apt_exits(100)
    done = installation.run()
    assert done.returncode == 1
    assert "set-up failed at: installing system packages" in done.stderr
    assert "apt's last words" in done.stderr
    assert "openvswitch-switch.service 101" in installation.seen.read_text()
    assert not installation.policy.exists()


def test_an_interrupted_set_up_holds_no_service_back_and_says_that_it_is_unfinished(installation: Installation) -> None:
    done = installation.interrupt_in_the_middle()
    assert done.returncode == 130
    assert "set-up interrupted" in done.stderr
    assert not installation.policy.exists()


def test_a_machine_s_own_service_policy_is_kept(installation: Installation) -> None:
    own = "#!/bin/sh\nexit 101\n"
    installation.policy.write_text(own)
    assert installation.run().returncode == 0
    assert installation.policy.read_text() == own


def test_an_open_vswitch_that_was_there_before_is_left_alone(installation: Installation) -> None:
    installation.checkout.program("dpkg-query", "[[ ${@: -1} == openvswitch-switch ]] && printf installed || exit 1")
    assert installation.run().returncode == 0
    assert "systemctl" not in installation.seen.read_text()
    assert "openvswitch-switch.service 0" in installation.seen.read_text()


def test_a_service_policy_that_a_killed_set_up_left_is_removed(installation: Installation) -> None:
    installation.policy.write_text("#!/bin/sh\n# heliograph set-up: temporary\nexit 101\n")
    installation.checkout.program("dpkg-query", "printf installed")
    (installation.checkout.path / ".venv/.heliograph-system").unlink()
    assert installation.run().returncode == 0
    assert not installation.policy.exists()
