"""The door: a set-up checkout goes straight to the command, any other one is set up first or told why not."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLI = "import os, sys; print('cli', os.getcwd(), *sys.argv[1:]); sys.exit(7 if 'fail' in sys.argv else 0)"


class Checkout:
    """A copy of the launcher, a command line that prints its arguments, and stand-ins for the system's programs."""

    def __init__(self, path: Path) -> None:
        self.path = path / "checkout"
        self.programs = path / "programs"
        self.programs.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("heliograph", "requirements.txt", "constraints.txt"):
            shutil.copy(ROOT / name, self.path / name)
        (self.path / "cli.py").write_text(CLI)
        # Every test decides which user it is, and none may reach the real package manager or service manager.
        self.user(1000)
        for name in ("apt-get", "systemctl"):
            self.program(name, f'echo "{name} was called" >&2; exit 99')
        # The programs a run needs, present whatever this machine has.
        for name in self.state("echo ${needed_binaries[@]}").split():
            self.program(name, "exit 0")

    def program(self, name: str, script: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)
        return path

    def user(self, uid: int) -> None:
        self.program("id", f"[[ $1 == -un ]] && echo someone || echo {uid}")

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.path / name).read_text()
        assert old in text
        (self.path / name).write_text(text.replace(old, new))

    def need(self, binary: str) -> None:
        self.edit("scripts/state.sh", "needed_binaries=(", f"needed_binaries=({binary} ")

    def state(self, expression: str) -> str:
        script = f'set -eu; here={self.path}; source "$here/scripts/state.sh"; {expression}'
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout

    def set_up(self, *, stamped: bool = True) -> None:
        """An environment as set-up leaves it, less the packages."""
        venv.create(self.path / ".venv", with_pip=False, symlinks=True)
        if stamped:
            for stamp in ("venv", "system"):
                (self.path / f".venv/.heliograph-{stamp}").write_text(self.state("fingerprint"))

    def run(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", **environment}
        return subprocess.run(
            [str(self.path / "heliograph"), *arguments],
            capture_output=True, text=True, cwd=cwd or self.path, env=env, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip

    def broken_python(self, message: str) -> str:
        """An interpreter that passes for one with venv and cannot make an environment."""
        script = f'[[ $1 == -c || $1 == -V ]] && exec {sys.executable} "$@"\necho "{message}"; exit 3'
        return str(self.program("broken-python", script))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def ready(checkout: Checkout) -> Checkout:
    checkout.set_up()
    return checkout


def test_arguments_reach_the_command_line_untouched_and_where_the_user_stands(ready: Checkout, tmp_path: Path) -> None:
    done = ready.run("simulate", "a b.yaml", "--set", "x=*", "", cwd=tmp_path)
    assert done.stdout == f"cli {tmp_path} simulate a b.yaml --set x=* \n"
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_s_exit_status_is_the_launcher_s(ready: Checkout) -> None:
    assert ready.run("fail").returncode == 7


def test_a_link_to_the_launcher_finds_the_checkout(ready: Checkout, tmp_path: Path) -> None:
    (tmp_path / "hg").symlink_to(ready.path / "heliograph")
    done = subprocess.run([str(tmp_path / "hg"), "cost"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f"cli {tmp_path} cost\n"


def test_a_later_call_adds_well_under_half_a_second(ready: Checkout) -> None:
    """Of processor time, which is all that it takes: it waits for nobody."""
    (ready.path / "cli.py").write_text("")

    def least_s(command: list[str]) -> float:
        times = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True, env={**os.environ, "PATH": f"{ready.programs}:{os.environ['PATH']}"})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    alone_s = least_s([str(ready.path / ".venv/bin/python"), str(ready.path / "cli.py")])
    assert least_s([str(ready.path / "heliograph"), "run"]) - alone_s < 0.2


def test_test_runs_pytest_in_the_checkout_on_the_tests_it_is_given(ready: Checkout, tmp_path: Path) -> None:
    (ready.path / "pytest.py").write_text(CLI.replace("'cli'", "'pytest'"))
    assert (
        ready.run("test", "tests/unit", "-k", "a or b", cwd=tmp_path).stdout
        == f"pytest {ready.path} tests/unit -k a or b\n"
    )


def test_test_runs_each_tier_in_a_process_of_its_own(ready: Checkout, tmp_path: Path) -> None:
    (ready.path / "pytest.py").write_text(CLI.replace("'cli'", "'pytest'"))
    processors = len(os.sched_getaffinity(0))
    assert ready.run("test", "-k", "a or b", cwd=tmp_path).stdout.splitlines() == [
        f"pytest {ready.path} tests/openflow -k a or b",
        f"pytest {ready.path} tests/unit --numprocesses={processors * 3 // 2} --dist=worksteal -k a or b",
        f"pytest {ready.path} tests/packets/shared --numprocesses=2 --dist=loadfile --no-loadscope-reorder -k a or b",
        f"pytest {ready.path} tests/vm --numprocesses=2 --dist=loadfile --no-loadscope-reorder -k a or b",
        f"pytest {ready.path} tests/benchmarks -k a or b",
        f"pytest {ready.path} tests/packets --ignore=tests/packets/shared -k a or b",
    ]


def test_the_test_of_the_whole_chain_is_asked_for_by_name(ready: Checkout, tmp_path: Path) -> None:
    show = "import os; print(os.environ['HELIOGRAPH_TEST_CHAIN']); "
    (ready.path / "pytest.py").write_text(show + CLI.replace("'cli'", "'pytest'"))
    assert ready.run("test", "--vm", "-x", cwd=tmp_path).stdout.splitlines() == [
        "1",
        f"pytest {ready.path} tests/vm/test_chain.py -rA --capture=no -x",
    ]


#: In the place of pytest: tests/vm starts a program that no SIGTERM ends, and tears down for half a second.
TIERS_THAT_WAIT = """\
import os, signal, subprocess, sys, time
vm = sys.argv[1] == "tests/vm"
if sys.argv[1] == "tests/openflow":
    sys.exit()
started = [os.getpid(), *([subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 90"]).pid] if vm else [])]
def tear_down(*_):
    time.sleep(0.5)
    open("torn down", "w").close()
    sys.exit(2)
if vm:
    signal.signal(signal.SIGTERM, tear_down)
open("pids", "a").write("".join(f"{pid} {sys.argv[1]}\\n" for pid in started))
time.sleep(90)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_tests_ends_the_machines_tier_in_order(ready: Checkout, number: int) -> None:
    """It has a session of its own, which the terminal's Ctrl-C does not reach; what it started ends with it."""
    (ready.path / "pytest.py").write_text(TIERS_THAT_WAIT)
    pids, torn_down = ready.path / "pids", ready.path / "torn down"
    env = {**os.environ, "PATH": f"{ready.programs}:{os.environ['PATH']}"}
    with subprocess.Popen([str(ready.path / "heliograph"), "test"], env=env, start_new_session=True) as running:
        until(lambda: pids.exists() and len(pids.read_text().splitlines()) == 3)
        started = [int(line.split()[0]) for line in pids.read_text().splitlines()]
        try:
            os.killpg(running.pid, number)
            assert running.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
            assert torn_down.exists() or number == signal.SIGKILL, "the launcher has not waited for it"
            until(torn_down.exists)  # a launcher that was killed cannot wait, and cannot kill what did not end in order
            if number != signal.SIGKILL:
                until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
        finally:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(("workers", "tear_down_s"), [(0, 0), (1, 8)])  # xdist interrupts after 5 s, and kills after 10
def test_a_tier_that_is_told_to_end_tears_its_fixtures_down_once(
    tmp_path: Path, workers: int, tear_down_s: float
) -> None:
    """By the tiers' own conftest, told twice."""
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    said = tmp_path / "said"
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent(f"""\
        import os, pathlib, pytest, signal, subprocess, time
        said = pathlib.Path({str(said)!r})

        @pytest.fixture
        def machine():
            yield
            if not {workers}:  # a worker is interrupted, and not told to end
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep({tear_down_s})
            said.write_text(said.read_text() + " torn down")

        def test_it(machine):
            said.write_text("runs")
            subprocess.run(["sleep", "60"])
            said.write_text("went on")
        """)
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--numprocesses={workers}", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, env=env) as running:
        until(said.exists)
        until(lambda: said.read_text() == "runs")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == pytest.ExitCode.INTERRUPTED
    assert said.read_text() == "runs torn down"


@pytest.mark.parametrize("tier", ["tests/vm", "tests/unit", "tests/packets/shared", "tests/packets"])
def test_a_tier_that_fails_fails_the_tests(ready: Checkout, tmp_path: Path, tier: str) -> None:
    (ready.path / "pytest.py").write_text(
        f"import sys; print('tests said'); sys.exit(4 if {tier!r} in sys.argv else 0)"
    )
    done = ready.run("test", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stdout.count("tests said") == 6


@pytest.mark.parametrize(("status", "expected"), [(1, 1), (2, 2), (5, 0)])
def test_one_failing_tier_fails_the_tests_but_an_empty_one_does_not(
    ready: Checkout, tmp_path: Path, status: int, expected: int
) -> None:
    (ready.path / "pytest.py").write_text(f"import sys; sys.exit({status} if 'tests/openflow' in sys.argv else 0)")
    assert ready.run("test", cwd=tmp_path).returncode == expected


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


def test_what_is_imported_is_among_what_is_installed_at_the_same_version() -> None:
    imported, installed = (
        {line.strip() for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")}
        for name in ("requirements.txt", "constraints.txt")
    )
    assert imported - installed == set()


def test_no_usable_python_is_said_with_the_remedy(checkout: Checkout) -> None:
    done = checkout.run("cost", HELIOGRAPH_PYTHON=str(checkout.program("python2", "exit 1")))
    assert done.returncode == 1
    assert "found no Python 3.10 to 3.13 with venv" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


@pytest.mark.parametrize("command", ["run", "demo", "validate", "setup"])
def test_without_root_a_command_that_needs_a_missing_program_says_which_and_how_to_get_it(
    ready: Checkout, command: str
) -> None:
    ready.need("no-such-program")
    ready.set_up()
    done = ready.run(command)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no-such-program" in done.stderr
    assert "sudo ./heliograph setup" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "x.yaml"],
        ["report", "d"],
        ["cost"],
        ["--help"],
        [],
        ["run", "x.yaml", "--dry-run"],
        ["run", "--help"],
        ["doctor"],
        ["sweep", "x.yaml"],
        ["sweep", "x.yaml", "--emulate", "--scheduler", "tcp://10.0.0.1:8786"],
    ],
)
def test_without_root_what_needs_no_network_works_without_system_packages(
    ready: Checkout, arguments: list[str]
) -> None:
    ready.need("no-such-program")
    ready.set_up()
    done = ready.run(*arguments)
    assert done.returncode == 0
    assert done.stdout.split()[2:] == arguments


def test_a_sweep_that_emulates_here_needs_what_a_run_needs(ready: Checkout) -> None:
    ready.need("no-such-program")
    ready.set_up()
    done = ready.run("sweep", "x.yaml", "--emulate")
    assert (done.returncode, done.stdout) == (1, "")
    assert "sweep: not found on this system: no-such-program" in done.stderr


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


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_ryu_s_manager_starts_quietly() -> None:
    done = python("scripts/ryu_manager.py", "--version")
    assert (done.returncode, done.stdout + done.stderr) == (0, "ryu-manager 4.34\n")


def test_importing_the_manager_readies_ryu_s_wsgi_module_and_patches_nothing() -> None:
    done = python(
        "-c",
        "import scripts.ryu_manager, ryu.app.wsgi, eventlet.patcher as p;"
        "print(any(map(p.is_monkey_patched, ['socket', 'thread', 'time'])))",
    )
    assert done.stdout == "False\n", done.stderr
