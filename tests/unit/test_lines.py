"""A link of JSON lines: what its owner hears when the other end goes."""

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest

from emulation.agents.lines import CLOSED, LineLink


def lost(peer_does: Callable[[socket.socket], None], *, we_say: bool = False) -> str:
    """What the owner of a link over TCP is told after `peer_does` to the other end."""

    async def work() -> str:
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
        link = LineLink(ours, lambda message: None, told.set_result)
        with theirs:
            if we_say:
                link.send({"words": "unread"})
            peer_does(theirs)
            return await asyncio.wait_for(told, 5)

    return asyncio.run(work())


def test_a_peer_that_closed_is_told_apart_from_a_link_that_broke() -> None:
    assert lost(lambda peer: peer.close()) == CLOSED
    assert not lost(lambda peer: peer.sendall(b"not JSON\n")).startswith(CLOSED)


def test_a_peer_that_ended_with_our_words_unread_has_closed() -> None:
    # closing with something unread answers with a reset instead of an end
    assert lost(lambda peer: peer.close(), we_say=True).startswith(CLOSED)


def test_a_reset_for_any_other_reason_is_the_peers_doing_too() -> None:
    def reset(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    assert lost(reset).startswith(CLOSED)


@pytest.mark.parametrize("text", [b"[1]\n", b'"words"\n'])
def test_what_is_no_message_breaks_a_link(text: bytes) -> None:
    assert not lost(lambda peer: peer.sendall(text)).startswith(CLOSED)
