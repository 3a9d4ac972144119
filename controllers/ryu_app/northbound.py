"""The northbound API: HTTP/1.1 with JSON, for the agents of the testbed. Every refusal is `{"error": reason}`.

Bodies are checked strictly: unknown keys, keys given twice, other types, NaN, infinity and negative sizes are 400. What
is no HTTP, or too long, never comes this far (`controllers/ryu_app/http_protocol.py`). Times are run-clock seconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

from eventlet.hubs import trampoline
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ryu.app.wsgi import ControllerBase, Request, Response, WSGIApplication, route
from ryu.lib import hub

from controllers.config import one_line
from controllers.core.demand import Demand, EventError, Placement
from controllers.ryu_app.fabric_shell import LONGEST_PREFILL_S, FabricShell
from controllers.ryu_app.grants import GrantListener
from inputs import json_file
from inputs.plugin_fault import PluginFault

LOG = logging.getLogger(__name__)

# beyond 2**53 a size is no longer exact as a float, and no KV cache
Bytes = Annotated[int, Field(ge=0, le=2**53)]
Seconds = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Admitted(_Body):
    """A request reached its prefill instance; see `controllers.core.demand.Demand`."""

    prefill: Name
    tenant: str
    session: str
    head_bytes: Bytes
    tail_bytes: Bytes
    layer_bytes: Bytes
    predicted_prefill_s: Annotated[float, Field(ge=0, le=LONGEST_PREFILL_S)]
    migrates: bool | None
    at_s: float


class Predicted(_Body):
    """Its prefill, or its last chunk, started; `predicted_end_s` is when the prefill will end."""

    predicted_end_s: Seconds
    at_s: float


class TransferDone(_Body):
    """All ranks have sent a part, or one of them could not."""

    part: Literal["head", "tail", "all"]
    at_s: float
    failed: bool = False


class Circuits(_Body):
    """Circuits to lay by hand: prefill instance -> decode instance."""

    pairs: dict[str, str]


class Clock(_Body):
    """Run-clock zero on CLOCK_MONOTONIC, and what a switch takes beyond its delay (real seconds)."""

    t0_monotonic_s: Seconds
    excess_s: Seconds | None = None


class NotFound(EventError):
    """No such instance or path."""

    status = 404


class NotAllowed(EventError):
    """A path that is there, but not for this method."""

    status = 405


Body = TypeVar("Body", bound=_Body)
Handler = Callable[..., dict[str, Any]]


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(
        body=json.dumps(body, separators=(",", ":")).encode(), content_type="application/json", status=status
    )


def _parse(model: type[Body], req: Request) -> Body:
    try:
        document = json_file.parse(req.body.decode(), "the body")
    except UnicodeDecodeError as error:
        raise EventError(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
    except json_file.JsonError as error:
        raise EventError(str(error)) from error
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise EventError(one_line(error)) from error


def _placement(placement: Placement | None) -> dict[str, Any]:
    return {
        "decode": placement.decode if placement else None,
        "head_moves": placement.head_moves if placement else None,
    }


def _answers(event: str) -> Callable[[Handler], Callable[..., Response]]:
    """A handler's dictionary as the response, its errors as refusals, and both counted."""

    def decorate(handler: Handler) -> Callable[..., Response]:
        @wraps(handler)
        def answered(self: Northbound, req: Request, **path: str) -> Response:
            start_s = time.monotonic()
            try:
                response = _json(handler(self, req, **path))
            except EventError as error:
                response = _json({"error": str(error)}, error.status)
            except PluginFault as error:
                LOG.error("%s: %s", event, error)
                self.shell.fail(f"controller: {event}: {error}")
                response = _json({"error": f"the controller failed: {error}"}, 500)
            except hub.TaskExit:
                raise
            except BaseException as error:  # a commit rule may raise anything where circuits follow what it booked
                LOG.exception("%s failed", event)
                self.shell.fail(f"controller: {event}: {type(error).__name__}: {error}")
                response = _json({"error": f"the controller failed: {type(error).__name__}: {error}"}, 500)
            self.shell.metrics.events.labels(event, response.status_int).inc()
            self.shell.metrics.reply_s.observe(time.monotonic() - start_s)
            return response

        return answered

    return decorate


def _close_at_hangup(connection: Any, stream: GrantListener) -> None:
    """Close a stream as soon as its listener hangs up; a write would learn of it with the second heartbeat."""
    with contextlib.suppress(OSError):
        # a listener says nothing more, so whatever can be read is the end; it may be silent for ever, and what is
        # written to it keeps the time that the connection allows
        trampoline(connection.fileno(), read=True)
    stream.close()


class Northbound(ControllerBase):
    """The routes. Ryu makes one for every request."""

    def __init__(self, req: Request, link: Any, data: dict[str, FabricShell], **config: Any) -> None:
        super().__init__(req, link, data, **config)
        self.shell = data["shell"]

    @route("event", "/v1/requests/{request_id}/admitted", methods=["POST"])
    @_answers("admitted")
    def admitted(self, req: Request, request_id: str) -> dict[str, Any]:
        body = _parse(Admitted, req)
        demand = Demand(request_id=request_id, **body.model_dump(exclude={"at_s"}))
        placement = self.shell.admitted(demand, body.at_s)
        return {"decode": placement.decode if placement else None}

    @route("event", "/v1/requests/{request_id}/prefill-started", methods=["POST"])
    @_answers("prefill-started")
    def prefill_started(self, req: Request, request_id: str) -> dict[str, Any]:
        body = _parse(Predicted, req)
        return _placement(self.shell.prefill_started(request_id, body.predicted_end_s, body.at_s))

    @route("event", "/v1/requests/{request_id}/last-chunk-started", methods=["POST"])
    @_answers("last-chunk-started")
    def last_chunk_started(self, req: Request, request_id: str) -> dict[str, Any]:
        body = _parse(Predicted, req)
        return _placement(self.shell.last_chunk_started(request_id, body.predicted_end_s, body.at_s))

    @route("event", "/v1/requests/{request_id}/transfer-done", methods=["POST"])
    @_answers("transfer-done")
    def transfer_done(self, req: Request, request_id: str) -> dict[str, Any]:
        body = _parse(TransferDone, req)
        self.shell.transfer_done(request_id, body.part, body.at_s, body.failed)
        return {}

    @route("grants", "/v1/instances/{name}/grants", methods=["GET"])
    def grants(self, req: Request, name: str) -> Response:
        if name not in self.shell.config.prefills:
            known = ", ".join(self.shell.config.prefills)
            return _json({"error": f"no prefill instance {name!r}; there are {known}"}, 404)
        # each line leaves at once: no coalescing in the server, none in the kernel (a grant behind an unacknowledged
        # one waits 40 ms)
        req.environ["eventlet.minimum_write_chunk_size"] = 0
        connection = req.environ["eventlet.input"].get_socket()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = self.shell.listen(name)
        hub.spawn(_close_at_hangup, connection, stream)
        return Response(app_iter=stream, content_type="application/x-ndjson")

    @route("state", "/v1/circuits", methods=["GET"])
    @_answers("circuits")
    def circuits(self, req: Request) -> dict[str, Any]:
        return self.shell.circuits()

    @route("state", "/v1/circuits", methods=["POST"])
    @_answers("set-circuits")
    def set_circuits(self, req: Request) -> dict[str, Any]:
        self.shell.set_circuits(_parse(Circuits, req).pairs)
        return self.shell.circuits()

    @route("state", "/v1/clock", methods=["POST"])
    @_answers("clock")
    def clock(self, req: Request) -> dict[str, Any]:
        body = _parse(Clock, req)
        self.shell.start_clock(body.t0_monotonic_s, body.excess_s)
        return {}

    @route("state", "/v1/reservations", methods=["GET"])
    @_answers("reservations")
    def reservations(self, req: Request) -> dict[str, Any]:
        return {"windows": self.shell.reservations()}

    @route("state", "/v1/health", methods=["GET"])
    @_answers("health")
    def health(self, req: Request) -> dict[str, Any]:
        return self.shell.health()

    @route("state", "/metrics", methods=["GET"])
    def metrics(self, req: Request) -> Response:
        return Response(body=self.shell.metrics.text(), headerlist=[("Content-Type", CONTENT_TYPE_LATEST)])

    def unknown(self, req: Request, path: str) -> Response:
        response = self._unknown(req, path=path)
        if response.status_int == 405:
            response.headers["Allow"] = ", ".join(self._methods(req))
        return response

    @_answers("unknown")
    def _unknown(self, req: Request, path: str) -> dict[str, Any]:
        if methods := self._methods(req):
            raise NotAllowed(f"{req.method} /{path} is not part of this API; the path takes {', '.join(methods)}")
        raise NotFound(f"{req.method} /{path} is not part of this API; docs/reference/northbound.md lists it")

    def _methods(self, req: Request) -> list[str]:
        """The methods that the request's path has."""
        matches = {
            method: self.parent.mapper.match(environ=req.environ | {"REQUEST_METHOD": method})
            for method in ("GET", "POST")
        }
        return [method for method, match in matches.items() if match["action"] != "unknown"]


def mount(wsgi: WSGIApplication, shell: FabricShell) -> None:
    """Serve `shell` from Ryu's WSGI application."""
    wsgi.register(Northbound, {"shell": shell})
    # last, for whatever the routes above do not match: Ryu's own answer is not JSON
    wsgi.mapper.connect("unknown", "/{path:.*}", controller=Northbound, action="unknown")
