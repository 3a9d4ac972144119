"""What the agents ask of the kernel that the standard library does not name: namespaces, parent death, TCP state.

Linux only. Constants are from linux/prctl.h, linux/sched.h, linux/sockios.h and linux/tcp.h.
"""

import ctypes
import fcntl
import os
import resource
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x40000000
PR_SET_TIMERSLACK = 29
SIOCOUTQ = 0x5411
TIMER_SLACK_NS = 1_000
NAMESPACE_DIRECTORY = Path("/run/netns")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_network_namespace(name: str) -> None:
    """Move this process into the named network namespace; OSError names the namespace and the reason."""
    path = NAMESPACE_DIRECTORY / name
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # os.setns appeared in Python 3.12.
        _check(_libc.setns(descriptor, CLONE_NEWNET), f"setns to {path}")
    finally:
        os.close(descriptor)


def set_timer_slack() -> None:
    """Let timers expire within a microsecond of their time: the default slack adds 50 us to every one."""
    _check(_libc.prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0), "prctl(PR_SET_TIMERSLACK)")


def set_realtime() -> bool:
    """Run before ordinary processes (SCHED_RR, lowest priority); False where that is not permitted.

    An agent needs little CPU, but at once: on two loaded cores its timers were 4 to 10 ms late (p99) without this and
    0.6 ms with it. One that spins for two seconds is ended by SIGXCPU, for it would starve the switch.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    resource.setrlimit(resource.RLIMIT_RTTIME, (2_000_000, 3_000_000))  # SIGXCPU, then SIGKILL
    return True


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Bytes written to a TCP socket that the peer's kernel has not acknowledged yet."""
    return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), SIOCOUTQ, b"\0" * 4))[0])


@dataclass(frozen=True, slots=True)
class TcpCounters:
    """Cumulative counters of one TCP connection. `rtos` is None on kernels before 6.7, which do not report it."""

    retransmits: int
    rtos: int | None
    rtt_us: int

    def since(self, before: "TcpCounters") -> "TcpCounters":
        """What happened between two readings of the same connection; `rtt_us` stays the newer reading."""
        rtos = None if self.rtos is None or before.rtos is None else self.rtos - before.rtos
        return TcpCounters(self.retransmits - before.retransmits, rtos, self.rtt_us)


_RTT_OFFSET, _TOTAL_RETRANS_OFFSET, _TOTAL_RTO_OFFSET = 68, 100, 240  # in struct tcp_info


def parse_tcp_info(raw: bytes) -> TcpCounters:
    """Read the counters out of a `struct tcp_info`; a shorter struct (older kernel) lacks the RTO count."""
    if len(raw) < _TOTAL_RETRANS_OFFSET + 4:
        raise ValueError(f"tcp_info of {len(raw)} bytes is too short: {_TOTAL_RETRANS_OFFSET + 4} are needed")
    (rtt_us,) = struct.unpack_from("=I", raw, _RTT_OFFSET)
    (retransmits,) = struct.unpack_from("=I", raw, _TOTAL_RETRANS_OFFSET)
    rtos = struct.unpack_from("=H", raw, _TOTAL_RTO_OFFSET)[0] if len(raw) >= _TOTAL_RTO_OFFSET + 2 else None
    return TcpCounters(retransmits, rtos, rtt_us)


def tcp_counters(connection: socket.socket) -> TcpCounters:
    """Retransmissions, timeouts and smoothed RTT of a TCP connection so far."""
    return parse_tcp_info(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))


def set_congestion_control(connection: socket.socket, name: str) -> None:
    """Choose the congestion control before connecting; RuntimeError where the kernel has none of that name.

    Whoever has no rights may choose those of net.ipv4.tcp_allowed_congestion_control alone; another one is the route's
    to set, when the socket connects. `check_congestion_control` afterwards.
    """
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except PermissionError:
        return
    except OSError as error:
        raise RuntimeError(
            f"congestion control {name!r} was refused ({error.strerror}): load tcp_{name}, or choose one of "
            "net.ipv4.tcp_available_congestion_control"
        ) from error


def check_congestion_control(connection: socket.socket, name: str) -> None:
    """RuntimeError where a connection has another congestion control."""
    got = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0", 1)[0].decode()
    if got != name:
        raise RuntimeError(
            f"congestion control of a connection is {got!r}, not {name!r}: the sender may not choose it, and its route "
            "does not have it (congctl)"
        )
