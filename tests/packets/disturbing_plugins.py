"""Plug-ins that disturb the controller they are loaded into: it answers late, or sets its rules too early."""

import time

from ryu.lib import hub

from controllers.decode_choices.by_load import LeastLoaded
from controllers.ryu_app import fabric_shell, reconfiguration

SLOW_S, EARLY_S = 0.050, 0.010


class Slow(LeastLoaded):
    """Every event is answered 50 ms late."""

    def __init__(self):
        answer = fabric_shell.FabricShell._event

        def late(self, *arguments):
            hub.sleep(SLOW_S)
            return answer(self, *arguments)

        fabric_shell.FabricShell._event = late


class Early(LeastLoaded):
    """The rules of a circuit are installed 10 ms before its delay is over."""

    def __init__(self):
        def too_short(deadline_s):
            while (left_s := deadline_s - EARLY_S - time.monotonic()) > 0:
                hub.sleep(left_s)

        reconfiguration.sleep_until = too_short
