"""A Dask cluster that somebody already has: who may be met, and how.

Whoever can reach a scheduler or a worker can have it run anything, and they run what they like in each other and in
us. So members have keys (TLS), or are on the loopback address of this machine and simulate. A result is data all the
same: bytes and plain values, which answer.py checks.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from inputs.errors import printable
from sweeps import dask_config
from sweeps.axes import SweepError

if TYPE_CHECKING:
    from distributed import Client

#: What a cell that emulates asks of its worker, so that a machine never runs two at once.
EMULATOR = "emulator"
CONNECT_TIMEOUT_S = 10
#: What is read of an answer: plain values and bytes, and no pickle.
PLAIN = ["msgpack"]

_ADDRESS = re.compile(r"(?:([a-z]+)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_SUCH = "give the address that `dask scheduler` prints, such as tls://10.0.0.1:8786"
_KEYS = (
    "DASK_DISTRIBUTED__COMM__TLS__CA_FILE",
    "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT",
    "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY",
)


def check_address(address: str) -> None:
    """Raises SweepError for what is no address, and for one without TLS anywhere but on this machine."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[3]) < 65536:
        raise SweepError(f"--scheduler {printable(address)[:200]}: no address of a Dask scheduler; {_SUCH}")
    if found[1] not in (None, "tcp", "tls"):
        raise SweepError(f"--scheduler {address}: {found[1]}:// is not supported; {_SUCH}")
    if open_to_others(address):
        raise SweepError(
            f"--scheduler {address}: without TLS, and not on this machine's loopback address: whoever reaches it can "
            "run code in it, in its workers and here; start it with TLS keys (docs/how-to/scale-out.md) and give tls://"
        )


def open_to_others(address: str) -> bool:
    """Whether other machines could reach an address, and nothing tells who they are."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return True
    if found[1] == "tls":
        return False
    host = found[2].strip("[]")
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


@contextmanager
def connected(address: str, *, emulator: bool) -> Iterator[Client]:
    """A client of the scheduler at an address. Raises SweepError where it is refused, does not answer, or has no
    workers that fit."""
    check_address(address)
    dask_config.users()
    with _client(address) as client:
        refuse_unfit(address, client.scheduler_info(n_workers=-1), emulator)
        yield client


def _client(address: str) -> Client:
    from distributed import Client

    for name in ("distributed", "asyncio", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if address.startswith("tls://"):
        _check_keys(address)
    try:
        _check_listener(address)
        return Client(
            address, timeout=CONNECT_TIMEOUT_S, set_as_default=False, direct_to_workers=False, deserializers=PLAIN
        )
    except Exception as error:  # addresses, names, keys, certificates, other programs' answers: Dask raises many kinds
        raise SweepError(
            f"--scheduler {address}: no Dask scheduler answers there ({_said(error)}); {_SUCH}, or leave it out for "
            "workers of this machine"
        ) from error


def _check_keys(address: str) -> None:
    """Raises SweepError where the user's configuration has no TLS keys, or none that can be used."""
    from distributed.security import Security

    try:
        security = Security()
        keys = security.get_tls_config_for_role("client")
        if None in (keys.get("ca_file"), keys.get("cert")):
            raise SweepError(
                f"--scheduler {address}: Dask has no TLS keys here: set {', '.join(_KEYS)}, or the same in "
                "~/.config/dask (docs/how-to/scale-out.md says how keys are made)"
            )
        security.get_connection_args("client")
    except SweepError:
        raise
    except Exception as error:  # files, PEM, passwords, types of a configuration
        raise SweepError(
            f"--scheduler {address}: the TLS keys that Dask is configured with cannot be used ({_said(error)}); look "
            f"at {', '.join(_KEYS)} or ~/.config/dask"
        ) from error


def _check_listener(address: str) -> None:
    """Raises OSError where nobody listens at an address, or somebody who does not greet as a scheduler does: a client
    of Dask tries again and again, or waits for the greeting for ever."""
    found = _ADDRESS.fullmatch(address)
    assert found is not None
    with socket.create_connection((found[2].strip("[]"), int(found[3])), timeout=CONNECT_TIMEOUT_S) as connection:
        if found[1] == "tls":
            return
        greeting = b""
        while len(greeting) < 8:
            if not (part := connection.recv(8 - len(greeting))):
                raise ConnectionError("it hangs up")
            greeting += part
        if int.from_bytes(greeting, "little") > 1 << 20:  # of bytes that follow: a scheduler says some hundreds
            raise ConnectionError("it speaks another protocol")


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return printable(text if len(text) <= 200 else text[:197] + "...")


def refuse_unfit(address: str, scheduler: dict[str, Any], emulator: bool) -> None:
    """Raises SweepError for a cluster without workers that fit, and where a member can be reached without a key."""
    found = scheduler["workers"]
    worker_command = (
        f"PYTHONPATH=$PWD .venv/bin/dask worker {address} --host ITS-ADDRESS --nthreads 1 "
        '--local-directory "$(mktemp -d)"'
    )
    if not found:
        raise SweepError(
            f"--scheduler {address}: it has no worker; start one in a checkout of this revision, with the TLS keys: "
            f"{worker_command}"
        )
    for member in [each for name, worker in found.items() for each in (name, worker.get("nanny")) if each]:
        if open_to_others(str(member)):
            raise SweepError(
                f"--scheduler {address}: its worker {printable(str(member))} offers itself without TLS beyond the "
                "loopback address: whoever reaches it can run code in it; start it with TLS keys and --host "
                "(docs/how-to/scale-out.md)"
            )
    emulators = {name for name, worker in found.items() if (worker.get("resources") or {}).get(EMULATOR)}
    if emulator and not emulators:
        raise SweepError(
            f"--scheduler {address}: none of its {len(found)} workers offers the resource {EMULATOR}=1; start one as "
            f'root, {worker_command} --resources "{EMULATOR}=1", on each machine that may emulate'
        )
    if bare := sorted(name for name in emulators if not str(name).startswith("tls://")):
        raise SweepError(
            f"--scheduler {address}: its worker {printable(str(bare[0]))} emulates, as root, and has no TLS: every "
            "user of its machine can have it run anything; start it with TLS keys (docs/how-to/scale-out.md)"
        )
