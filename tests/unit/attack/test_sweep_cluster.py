"""Whose workers a sweep uses: what anybody could feed is refused, what does not answer is one line, and at once."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from plugin_cases import ROOT, heliograph

from sweeps import cluster, dask_config
from sweeps.axes import SweepError
from sweeps.cluster import check_address, connected, open_to_others, refuse_unfit
from sweeps.workers import workers

RECIPE = (ROOT / "docs" / "how-to" / "scale-out.md").read_text()
KEYS = ("CA_FILE", "CLIENT__CERT", "CLIENT__KEY")


@pytest.mark.parametrize(
    "address",
    ["tls://10.0.0.1:8786", "tls://head.example:8786", "tcp://127.0.0.1:8786", "127.9.9.9:1", "tcp://[::1]:8786",
     "localhost:8786", "tls://[fd00::1]:8786"],
)  # fmt: skip
def test_members_with_keys_and_this_machine_are_met(address):
    check_address(address)


@pytest.mark.parametrize(
    "address",
    ["tcp://10.0.0.1:8786", "10.0.0.1:8786", "tcp://0.0.0.0:8786", "tcp://[::]:8786", "tcp://head.example:8786",
     "tcp://localhost.example:1", "tcp://127.0.0.1.example:1", "tcp://[fd00::1]:1", "tcp://2130706433:1"],
)  # fmt: skip
def test_whoever_could_be_anybody_is_refused(address):
    with pytest.raises(SweepError, match=r"without TLS.*docs/how-to/scale-out\.md"):
        check_address(address)


@pytest.mark.parametrize(
    "address",
    ["", " ", "x", "tcp://", "tls://", "tls://head", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:0",
     "tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:-1", "tcp://127.0.0.1:٣", "tls://[::1:8786",
     "tls://a b:1", "tls://a:1/b", "tls://a:1\n", "tls://\x1b[2J:1", "tls://user@a:1", "inproc://127.0.0.1:1", "ws://127.0.0.1:1",
     "ucx://10.0.0.1:1", "http://127.0.0.1:8786", "tls://" + "a" * 100_000, "tls://\0:1", "tcp:///tmp/x:1"],
)  # fmt: skip
def test_what_is_no_address_is_refused_in_one_line(address):
    with pytest.raises(SweepError, match="--scheduler") as refused:
        check_address(address)
    assert str(refused.value).isprintable()


def test_a_worker_that_offers_itself_without_tls_is_refused_however_its_scheduler_was_reached():
    found = {"workers": {"tcp://10.0.0.2:4000": {"resources": {}, "nanny": "tcp://10.0.0.2:4001"}}}
    with pytest.raises(SweepError, match=r"worker tcp://10\.0\.0\.2:4000 offers itself without TLS"):
        refuse_unfit("tcp://127.0.0.1:8786", found, False)
    found = {"workers": {"tls://10.0.0.2:4000": {"resources": {}, "nanny": "tcp://0.0.0.0:4001"}}}
    with pytest.raises(SweepError, match=r"worker tcp://0\.0\.0\.0:4001 offers itself"):
        refuse_unfit("tls://10.0.0.1:8786", found, False)
    found = {"workers": {"tls://10.0.0.2:4000": {"resources": {}, "nanny": "tls://10.0.0.2:4001"}}}
    refuse_unfit("tls://10.0.0.1:8786", found, False)


def test_a_worker_that_emulates_needs_tls_on_the_loopback_address_too():
    of_root = {"resources": {"emulator": 1.0}, "nanny": None}
    with pytest.raises(SweepError, match="emulates, as root, and has no TLS: every user of its machine"):
        refuse_unfit("tcp://127.0.0.1:8786", {"workers": {"tcp://127.0.0.1:4000": of_root}}, True)
    refuse_unfit("tls://10.0.0.1:8786", {"workers": {"tls://10.0.0.2:4000": of_root}}, True)


def test_an_address_of_a_member_that_cannot_be_read_is_open_to_others():
    assert open_to_others("\x1b[2Jnonsense")


# -- what does not answer -----------------------------------------------------------------------------------------


def silent(connection: socket.socket) -> None:
    threading.Event().wait(30)


def hangs_up(connection: socket.socket) -> None:
    connection.close()


def garbage(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"\xff" * 4096)


def web(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@contextmanager
def listener(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Who listens on loopback and talks like this to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=shielded, args=(connection,), daemon=True).start()

        def shielded(connection: socket.socket) -> None:
            with suppress(OSError):
                talk(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("talk", [silent, hangs_up, garbage, web])
def test_whoever_is_no_scheduler_is_one_line_within_the_time_that_is_given(monkeypatch, talk):
    monkeypatch.setattr(cluster, "CONNECT_TIMEOUT_S", 1)
    began_s = time.monotonic()
    with listener(talk) as port, pytest.raises(SweepError, match="no Dask scheduler answers there") as refused:  # noqa: SIM117
        with connected(f"tcp://127.0.0.1:{port}", emulator=False):
            pass
    assert time.monotonic() - began_s < 15
    assert str(refused.value).isprintable()


def test_nobody_there_is_known_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began_s = time.monotonic()
    with pytest.raises(SweepError, match="refused"), connected(f"tcp://127.0.0.1:{port}", emulator=False):
        pass
    assert time.monotonic() - began_s < cluster.CONNECT_TIMEOUT_S


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "Dask has no TLS keys here: set DASK_DISTRIBUTED__COMM__TLS__CA_FILE"),
        (dict.fromkeys(KEYS, "/nowhere.pem"), "cannot be used .*No such file"),
        (dict.fromkeys(KEYS, str(ROOT / "README.md")), "cannot be used"),
        (dict.fromkeys(KEYS, "[1, 2]"), "cannot be used|no TLS keys"),
    ],
)
def test_tls_without_keys_that_can_be_used_is_one_line(monkeypatch, variables, says):
    for key, value in variables.items():
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{key}", value)
    with pytest.raises(SweepError, match=says) as refused, connected("tls://127.0.0.1:1", emulator=False):
        pass
    assert str(refused.value).isprintable()
    monkeypatch.undo()
    dask_config.users()


def test_the_command_refuses_with_exit_status_2_and_one_line(spec, tmp_path):
    for address in ("tcp://10.0.0.1:8786", "tls://127.0.0.1:1"):
        done = heliograph("sweep", spec, "--scheduler", address, "--artifact-dir", tmp_path / "grid", cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


# -- the recipe ---------------------------------------------------------------------------------------------------


def block(containing: str) -> str:
    """The lines of the documentation's shell block with these words."""
    [found] = [each for each in re.findall(r"```\n(.*?)```", RECIPE, re.DOTALL) if containing in each]
    return found


def test_the_documented_cluster_computes_a_grid_and_answers_nobody_without_a_key(spec, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    home = tmp_path / "home"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DASK_", "PYTHON"))}
    environment |= {"HOME": str(home), "TMPDIR": str(tmp_path)}

    def here(text: str) -> str:
        text = (
            re.sub(r"10\.0\.0\.\d", "127.0.0.1", text)
            .replace("8786", str(port))
            .replace("127.0.0.1:8787", "127.0.0.1:0")
        )
        return text.replace(".venv/bin/dask", f"exec {sys.executable} -m dask").replace("--nworkers 4", "--nworkers 1")

    def run(text: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-euc", here(text)]
        return subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )

    made = run(block("openssl"))
    assert made.returncode == 0, made.stderr
    assert {path.name: path.stat().st_mode & 0o077 for path in (home / "heliograph-keys").iterdir()}.items() >= {
        "ca.pem": 0, "member.pem": 0, "member.key": 0
    }.items()  # fmt: skip
    with ExitStack() as members:
        for role in ("dask scheduler", "--nworkers"):
            log = members.enter_context((tmp_path / f"{role.strip('-')}.log").open("w"))
            process = subprocess.Popen(
                ["bash", "-euc", here(block(role))], env=environment, cwd=ROOT, stdout=log, stderr=log
            )
            members.callback(process.wait, 60)
            members.callback(process.terminate)
        logs = [tmp_path / "dask scheduler.log", tmp_path / "nworkers.log"]
        until_s = time.monotonic() + 180
        while "Registered to" not in logs[1].read_text():
            assert time.monotonic() < until_s, [log.read_text() for log in logs]
            time.sleep(0.1)
        sweep = block("--scheduler tls://").replace("./heliograph", f"{sys.executable} {ROOT / 'cli.py'}")
        sweep = sweep.replace("FILE --over ...", f"{spec} --set seeds=[1] --artifact-dir {tmp_path / 'grid'}")
        done = run(sweep)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(list((tmp_path / "grid").rglob("cell.json"))) == 2
        refuses_strangers(port)


def refuses_strangers(port: int) -> None:
    """Who speaks no TLS, and who shows no certificate, is not answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"\0" * 64)
        with suppress(ConnectionError):
            assert connection.recv(64)[:1] in (b"", b"\x15"), "an answer other than TLS's alert"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    said = b""
    stranger = socket.create_connection(("127.0.0.1", port), timeout=10)
    # TLS 1.3: the alert may come with the first read
    with suppress(ssl.SSLError, ConnectionError), context.wrap_socket(stranger) as connection:
        said = connection.recv(64)
    assert said == b"", "somebody without a certificate was answered"


def test_local_workers_and_their_scheduler_demand_a_certificate():
    with workers(1) as client:
        for address in [client.scheduler.address, *client.scheduler_info(n_workers=-1)["workers"]]:
            assert address.startswith("tls://127.0.0.1:")
            refuses_strangers(int(address.rpartition(":")[2]))
