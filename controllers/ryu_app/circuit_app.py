"""The Ryu app: OpenFlow 1.3 below, the northbound API above, a pure core between.

Its configuration is the file named by HELIOGRAPH_CONTROLLER. On a packet fabric it serves the same API without a
datapath, so that control costs the same on every fabric.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from typing import Any

from ryu import cfg
from ryu.base import app_manager
from ryu.controller import ofp_event
from ryu.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from ryu.lib import hub
from ryu.ofproto import ofproto_v1_3

from controllers import config as controller_config
from controllers.ryu_app import northbound
from controllers.ryu_app.connections import Connections
from controllers.ryu_app.datapaths import Datapaths
from controllers.ryu_app.event_log import EventLog
from controllers.ryu_app.fabric_shell import FabricShell
from controllers.ryu_app.http_server import (
    MOST_OF_ONE_CLIENT,
    HttpServer,
    NorthboundApplication,
    TooFewDescriptors,
    most_connections,
)
from controllers.ryu_app.metrics import Metrics
from controllers.ryu_app.purge import FlowCaches, UnixctlError
from controllers.ryu_app.reconfiguration import Switches
from process.rights import Identity, RightsError, die_with, give_up

_NICE = -10


def _be_nobody(identity: Identity, caches: FlowCaches) -> None:
    """Give up every right; what needs one is open by then: the log, and the control sockets of the switches."""
    caches.connect()
    parent_pid = os.getppid()
    give_up(identity)
    die_with(parent_pid)


class CircuitApp(app_manager.RyuApp):
    """Wires the pieces together and hands OpenFlow events on."""

    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    _CONTEXTS = {"wsgi": NorthboundApplication}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        try:
            config = controller_config.read(os.environ.get("HELIOGRAPH_CONTROLLER", ""))
            planes = [plane.plane() for plane in config.planes]
            log = EventLog(config.log)
            most = most_connections(len(config.prefills), len(config.planes))
            caches = FlowCaches(plane.unixctl for plane in planes)
            # on a real machine the controller has a processor of its own; here agents and packets compete for it
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, _NICE)
            controller_config.keep_plugins(config)
            if config.run_as is not None:
                _be_nobody(Identity(config.run_as.uid, config.run_as.gid), caches)
            core = controller_config.core(config)  # a user's own code, if any, begins here
        except (
            controller_config.ControllerConfigError,
            TooFewDescriptors,
            OSError,
            RightsError,
            UnixctlError,
        ) as error:
            print(f"heliograph controller: {error}", file=sys.stderr)
            raise SystemExit(2) from error
        self._bridges = {plane.dpid: plane.bridge for plane in planes}
        self._datapaths = Datapaths(planes)
        switches = Switches(self._datapaths, caches) if planes else None
        self._log = log
        self._shell = FabricShell(config, core, switches, log, Metrics())
        self._application = kwargs["wsgi"]
        self._connections = Connections(most, MOST_OF_ONE_CLIENT)
        northbound.mount(self._application, self._shell)
        # one line for each of hundreds of events a second is no use to anybody
        logging.getLogger("ryu.lib.hub").setLevel(logging.WARNING)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # what start-up made stays for the whole run: a full collection that visits it stalls every timer for tens of
        # milliseconds
        gc.collect()
        gc.freeze()

    def start(self) -> Any:
        """Ryu's beginning of an app; returns what it waits for."""
        super().start()
        return hub.spawn(self._serve)

    def _serve(self) -> None:
        hub.sleep(0)  # whoever is answered here finds the OpenFlow port open too
        address = cfg.CONF.wsapi_host, cfg.CONF.wsapi_port
        try:
            server = HttpServer(address, self._application, self._connections, self._shell.metrics)
        except OSError as error:
            print(f"heliograph controller: cannot listen on {address}: {error.strerror}", file=sys.stderr)
            os._exit(2)
        server.serve_forever()

    def _stop(self, number: int, frame: object) -> None:
        # Ryu's own ending waits for every open connection, and grant streams never close. Nothing is left to flush.
        self._log.write("stop", t_s=self._shell.now_s(), signal=signal.Signals(number).name)
        os._exit(0)

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def _on_state_change(self, event: Any) -> None:
        datapath = event.datapath
        if event.state == MAIN_DISPATCHER:
            if self._datapaths.connected(datapath):
                self._shell.plane_connected(datapath.id)
            else:
                self.logger.warning("datapath %#x is no plane of this run; it is left alone", datapath.id)
        elif datapath.id is not None and self._datapaths.lost(datapath):
            self._shell.plane_lost(datapath.id, self._bridges[datapath.id])

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def _on_barrier_reply(self, event: Any) -> None:
        self._datapaths.answered(event.msg.datapath, event.msg.xid)

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def _on_error(self, event: Any) -> None:
        message = event.msg
        self._datapaths.refused(
            message.datapath, f"refused a message: OpenFlow error type {message.type} code {message.code}"
        )
