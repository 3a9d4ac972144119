"""Probe frames for the dark-time test: `frame_stream.py send|receive SECONDS PERIOD NAMESPACE:INTERFACE...`.

`send` emits one numbered frame from every interface each PERIOD seconds. `receive` writes one record for each frame
that an interface gets, stamped by the kernel, on its standard output when it ends: little-endian
`(CLOCK_MONOTONIC nanoseconds u64, receiver u16, sender u16, number u32)`.
"""

import selectors
import signal
import socket
import struct
import sys
import time

from emulation.linux import netns
from emulation.linux.wall_clock import read_clocks

ETHERTYPE = 0x88B5  # IEEE 802: local experimental use
RECORD = struct.Struct("<QHHI")
_PAYLOAD = struct.Struct("!HI")
_HEADER_BYTES = 14
_SO_RCVBUFFORCE = 33
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")


def _sockets(places: list[str]) -> list[socket.socket]:
    sockets = []
    for place in places:
        namespace, _, interface = place.partition(":")

        def bound(interface: str = interface) -> socket.socket:
            packet_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
            packet_socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
            packet_socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            packet_socket.bind((interface, ETHERTYPE))
            return packet_socket

        sockets.append(netns.run_in(namespace, bound))
    return sockets


def send(places: list[str], duration_s: float, period_s: float) -> None:
    """Frames at the period for the duration; a late tick is not made up for."""
    sockets = _sockets(places)
    headers = [
        bytes.fromhex("02000000ff00") + b"\x02\x00\x00\x00\x00" + bytes([index + 1]) + struct.pack("!H", ETHERTYPE)
        for index in range(len(sockets))
    ]
    end_s = time.monotonic() + duration_s
    number = 0
    while time.monotonic() < end_s:
        for index, packet_socket in enumerate(sockets):
            packet_socket.send(headers[index] + _PAYLOAD.pack(index, number) + bytes(40))
        number += 1
        time.sleep(period_s)


def receive(places: list[str], duration_s: float) -> None:
    """Records until SIGTERM, or for the duration."""
    selector = selectors.DefaultSelector()
    for index, packet_socket in enumerate(_sockets(places)):
        packet_socket.setblocking(False)
        selector.register(packet_socket, selectors.EVENT_READ, index)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    end_s = time.monotonic() + duration_s
    records = bytearray()
    while time.monotonic() < end_s and not stopped:
        ready = selector.select(0.2)
        # the kernel stamps in CLOCK_REALTIME, which may be slewed: what it is ahead by is taken anew each time
        offset_ns = round(read_clocks(tries=4).ahead_s * 1e9)
        for key, _ in ready:
            try:
                while True:
                    frame, control, _, _ = key.fileobj.recvmsg(128, 64)  # type: ignore[union-attr]
                    seconds, nanoseconds = _TIMESPEC.unpack(control[0][2])
                    sender, number = _PAYLOAD.unpack_from(frame, _HEADER_BYTES)
                    records += RECORD.pack(seconds * 1_000_000_000 + nanoseconds - offset_ns, key.data, sender, number)
            except BlockingIOError:
                pass
    sys.stdout.buffer.write(records)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[4:], float(sys.argv[2]), float(sys.argv[3]))
    else:
        receive(sys.argv[4:], float(sys.argv[2]))
