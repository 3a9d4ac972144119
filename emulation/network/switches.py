"""The circuit switches of a testbed: every plane is a bridge of the run's own Open vSwitch, or of one of several.

One ovs-vswitchd is one busy thread on the user-space datapath. Where the circuits together ask for more than it
carries, the planes are dealt to several, each in a namespace of its own: two in one namespace collide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from emulation.linux.ledger import RunLedger
from emulation.network.ovs import Bridge, OpenVSwitch


class CircuitSwitches:
    """Open vSwitches and the bridges dealt to them: the i-th bridge to the i-th of them, over and over, so that the
    ranks of a transfer, which move together, are shared out."""

    def __init__(self, ledger: RunLedger, namespaces: Mapping[str, str], bridges: Sequence[Bridge], datapath: str):
        """namespaces: name of an Open vSwitch ("ovs0") -> where its ports are."""
        self._switches = [OpenVSwitch(ledger, name, namespace, datapath) for name, namespace in namespaces.items()]
        count = len(self._switches)
        self._dealt = [list(bridges[number::count]) for number in range(count)]
        self._of = {bridge.name: self._switches[number % count] for number, bridge in enumerate(bridges)}

    def of(self, bridge: str) -> OpenVSwitch:
        """The Open vSwitch that holds a bridge. Raises KeyError."""
        return self._of[bridge]

    @property
    def unixctls(self) -> dict[str, Path]:
        """Bridge -> control socket of its ovs-vswitchd."""
        return {bridge: switch.unixctl for bridge, switch in self._of.items()}

    def start(self, controller: str | None) -> None:
        """Start all of them, as `OpenVSwitch.start`."""
        for switch, bridges in zip(self._switches, self._dealt, strict=True):
            switch.start(bridges, controller)

    def connect(self, controller: str) -> None:
        """Give every bridge its controller, as `OpenVSwitch.connect`."""
        for switch, bridges in zip(self._switches, self._dealt, strict=True):
            switch.connect(bridges, controller)

    def stop(self) -> None:
        """End all of them. May be called again."""
        for switch in self._switches:
            switch.stop()

    def pids(self) -> dict[str, int]:
        """Name of a daemon -> process id of what runs."""
        return {self._name(n, name): pid for n, each in enumerate(self._switches) for name, pid in each.pids().items()}

    @property
    def control(self) -> dict[str, Path]:
        """Name of a daemon -> its control socket, of what was started."""
        return {
            self._name(n, name): path for n, each in enumerate(self._switches) for name, path in each.control.items()
        }

    def check_alive(self) -> None:
        """Raises OpenVSwitchError when one of the processes has ended."""
        for switch in self._switches:
            switch.check_alive()

    def _name(self, number: int, program: str) -> str:
        """`ovs-vswitchd`, and `ovs-vswitchd 1` for the second."""
        return f"{program} {number}" if number else program
