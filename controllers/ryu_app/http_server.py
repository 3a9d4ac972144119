"""The server of the northbound API: takes connections for as long as the process lives, and never more than it has
file descriptors for.

eventlet's own accept loop ends for good with the first error (no descriptor left is one), and takes every connection.
"""

from __future__ import annotations

import contextlib
import logging
import math
import resource
from typing import Any

import eventlet
from eventlet import greenio, wsgi
from ryu.app.wsgi import WSGIApplication
from ryu.lib import hub

from controllers.ryu_app.connections import Connection, Connections
from controllers.ryu_app.http_protocol import WRITE_S, LimitedProtocol, Refused, answer
from controllers.ryu_app.metrics import Metrics

_FILES = resource.RLIMIT_NOFILE
LOG = logging.getLogger(__name__)

#: Connections of one client: an agent needs two, the run one at a time.
MOST_OF_ONE_CLIENT = 32
#: Connections beside those of the agents: of the run, and of whoever looks.
OTHERS = 128
#: Descriptors that are not the API's: log, event loop, listeners, switches and their control sockets, and connections
#: that are being closed.
RESERVED = 40
BACKLOG = 1024
#: After an error of the listener, until the next try.
PAUSE_S = 0.05


class TooFewDescriptors(Exception):
    """The process may not open as many files as its agents need."""


def most_connections(prefills: int, planes: int) -> int:
    """How many connections to hold; the limit of open files is raised for them as far as it may be. Raises
    TooFewDescriptors."""
    wanted, reserved = OTHERS + 4 * prefills, RESERVED + 2 * planes
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(_FILES))
    if soft < wanted + reserved and soft < hard:
        soft = min(hard, wanted + reserved)
        resource.setrlimit(_FILES, (int(soft), resource.getrlimit(_FILES)[1]))
    most = int(min(wanted, soft - reserved))
    if most < 2 * prefills + 1:
        raise TooFewDescriptors(
            f"at most {most + reserved} open files are allowed (RLIMIT_NOFILE), and {prefills} prefill instances need "
            f"{2 * prefills + 1 + reserved}; raise it with ulimit -n"
        )
    return most


class NorthboundApplication(WSGIApplication):
    """Ryu's application, for which Ryu starts no server of its own: it does for the base class alone."""


class HttpServer:
    """Serves an application at an address, which is bound at once."""

    def __init__(self, address: tuple[str, int], application: Any, connections: Connections, metrics: Metrics) -> None:
        self._listener = eventlet.listen(address, backlog=BACKLOG, reuse_port=False)
        self._connections, self._metrics = connections, metrics
        self._server = wsgi.Server(
            self._listener,
            self._listener.getsockname(),
            application,
            protocol=LimitedProtocol,
            max_http_version="HTTP/1.1",
            socket_timeout=WRITE_S,
            log_output=False,
            debug=False,
        )
        self._server.connections, self._server.metrics = connections, metrics

    @property
    def port(self) -> int:
        """Where it listens; one of the kernel's choice where the address had 0."""
        return int(self._listener.getsockname()[1])

    def serve_forever(self) -> None:
        """Take connections, whatever happens."""
        while True:
            try:
                opened, address = self._listener.accept()
            except OSError as error:
                LOG.warning("the northbound API cannot take a connection: %s", error)
                hub.sleep(PAUSE_S)
                continue
            self._take(opened, address)
            hub.sleep(0)  # those that are open have their turn, however many more knock

    def _take(self, opened: Any, address: tuple[str, int]) -> None:
        connection = Connection(address[0], lambda: greenio.shutdown_safe(opened))
        if self._connections.enter(connection):
            self._metrics.connections.set(len(self._connections))
            hub.spawn(self._serve, opened, address, connection)
            return
        refused = Refused(429, f"{address[0]} has {MOST_OF_ONE_CLIENT} connections in use, or all together too many")
        self._metrics.refused.labels(refused.status).inc()
        with contextlib.suppress(OSError), opened:
            opened.setblocking(False)
            opened.send(answer(refused))

    def _serve(self, opened: Any, address: tuple[str, int], connection: Connection) -> None:
        try:
            opened.settimeout(WRITE_S)
            self._server.process_request([address, opened, wsgi.STATE_IDLE, connection])
        except OSError:
            pass  # it has gone, or did not take its answer in time
        finally:
            greenio.shutdown_safe(opened)
            opened.close()
            self._connections.leave(connection)
            self._metrics.connections.set(len(self._connections))
