"""The Mininet node classes of these topologies: how stock Mininet applies the data that a topology carries.

Heliograph's own testbed reads the same data and never makes these objects; they serve `mn --custom` and Mininet
scripts. Links are not
shaped there: `mn` builds plain veth pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from subprocess import PIPE
from typing import Any, Protocol

from mininet.node import Node


class NodeError(RuntimeError):
    """A node could not be configured: says which node, which command, and what the kernel answered."""


class Text(Protocol):
    """Something with the arguments of an `ip` sub-command: a route, a neighbour."""

    def text(self) -> str: ...


def ip_batch(addresses: Mapping[str, str], routes: Sequence[Text], neighbours: Sequence[Text]) -> str:
    """The `ip -batch` text that gives a node its addresses, neighbours and routes; the order matters, a route needs
    its interface up.

    addresses: interface -> CIDR. `noprefixroute` where a /32 brings no prefix anyway keeps every route in `routes`.
    """
    lines = ["link set lo up"]
    lines += [f"link set {interface} up" for interface in addresses if interface != "lo"]
    lines += [f"address add {cidr} dev {interface} noprefixroute" for interface, cidr in addresses.items()]
    lines += [f"neighbour add {neighbour.text()}" for neighbour in neighbours]
    lines += [f"route add {route.text()}" for route in routes]
    return "\n".join(lines) + "\n"


class ConfiguredNode(Node):
    """A node that applies `addresses`, `routes`, `neighbours` and `sysctls` when Mininet configures it."""

    def config(
        self,
        addresses: Mapping[str, str] | None = None,
        routes: Sequence[Text] = (),
        neighbours: Sequence[Text] = (),
        sysctls: Mapping[str, str] | None = None,
        **params: Any,
    ) -> dict[str, Any]:
        """Raises NodeError when a sysctl or an `ip` command fails."""
        # Mininet would give every node an address of its own choice; the topology has decided already.
        result: dict[str, Any] = super().config(**(params | {"ip": None, "mac": None}))
        writes = [f"echo {value} > /proc/sys/{name.replace('.', '/')}" for name, value in (sysctls or {}).items()]
        writes += [f"echo 0 > /proc/sys/net/ipv4/conf/{interface}/rp_filter" for interface in self.nameToIntf]
        self._feed(["sh", "-e"], "\n".join(writes) + "\n")
        self._feed(["ip", "-batch", "-"], ip_batch(addresses or {}, routes, neighbours))
        self._show_addresses(addresses or {})
        return result

    def _feed(self, command: list[str], text: str) -> None:
        process = self.popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        _, errors = process.communicate(text.encode())
        if process.returncode:
            raise NodeError(
                f"{self.name}: {' '.join(command)} failed with {process.returncode}: {errors.decode().strip()}"
            )

    def _show_addresses(self, addresses: Mapping[str, str]) -> None:
        """Tell Mininet what the kernel was told, so that `node.IP()` and `pingall` work; a router answers for its
        loopback."""
        for interface, cidr in addresses.items():
            intf = self.defaultIntf() if interface == "lo" else self.nameToIntf[interface]
            intf.ip, intf.prefixLen = cidr.split("/")


class Router(ConfiguredNode):
    """A kernel L3 router."""


class Host(ConfiguredNode):
    """An end system."""
