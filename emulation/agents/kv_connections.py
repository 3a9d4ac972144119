"""The KV connections of one prefill instance: kept per decode, or new per transfer with a source port for ECMP."""

import asyncio
from collections import deque

from emulation.agents.config import AgentConfig, InstanceConfig
from emulation.agents.transfer import KvConnection, open_connection
from workloads.flow_hash import hashed_uplink


class SourcePorts:
    """Source ports of one pair and rank by uplink, the least recently used first."""

    def __init__(self, by_uplink: list[list[int]]) -> None:
        self._by_uplink = [deque(ports) for ports in by_uplink]

    @property
    def uplinks(self) -> int:
        """How many uplinks there are to choose from."""
        return len(self._by_uplink)

    def take(self, uplink: int, count: int = 4) -> list[int]:
        """Up to `count` ports that map to `uplink`, each used longest ago; the first is meant to be used. ValueError
        where the uplink has none."""
        ports = self._by_uplink[uplink]
        if not ports:
            raise ValueError(f"uplink {uplink} has no source port in its pool")
        chosen = list(ports)[:count]
        ports.rotate(-1)
        return chosen


class KvConnections:
    """Opens, keeps and hands out connections to decode instances, one per rank."""

    def __init__(self, config: AgentConfig, prefill: InstanceConfig) -> None:
        self._config = config
        self._prefill = prefill
        self._kept: dict[tuple[str, int], KvConnection] = {}
        pools = config.ecmp_ports.get(prefill.name, {})
        self._ports = {
            (decode, rank): SourcePorts([list(ports) for ports in by_uplink])
            for decode, by_rank in pools.items()
            for rank, by_uplink in enumerate(by_rank)
        }
        self.per_transfer = config.fabric_kind == "eps" and config.ecmp_unit == "transfer"

    async def connect(self, decode: str) -> None:
        """Open the kept connections to a decode on every rank, all at once; those that stand stay."""
        await asyncio.gather(*(self._keep(decode, rank) for rank in range(len(self._prefill.gpu_ips))))

    async def for_transfer(self, decode: str, request_id: str) -> list[KvConnection]:
        """The connections a transfer uses, by rank: new ones, or those kept. OSError or TimeoutError where one cannot
        be opened."""
        ranks = range(len(self._prefill.gpu_ips))
        if self.per_transfer:
            opened = await asyncio.gather(
                *(self._open(decode, rank, (request_id, str(rank))) for rank in ranks), return_exceptions=True
            )
            connections = [each for each in opened if isinstance(each, KvConnection)]
            for failure in opened:
                if isinstance(failure, BaseException):
                    for connection in connections:
                        connection.close()
                    raise failure
            return connections
        # A kept connection that stands is taken without a turn of the event loop in between.
        for rank in ranks:
            if not self.stands(decode, rank):
                await self._keep(decode, rank)
        return [self._kept[decode, rank] for rank in ranks]

    def stands(self, decode: str, rank: int) -> bool:
        """Whether a kept connection to that rank of a decode can be used."""
        connection = self._kept.get((decode, rank))
        return connection is not None and connection.usable

    def close(self) -> None:
        """Close what is kept."""
        for connection in self._kept.values():
            connection.close()

    async def _keep(self, decode: str, rank: int) -> None:
        if not self.stands(decode, rank):
            self._kept[decode, rank] = await self._open(decode, rank, (self._prefill.name, decode, str(rank)))

    async def _open(self, decode: str, rank: int, flow: tuple[str, ...]) -> KvConnection:
        peer = (self._config.instance(decode, "decode").gpu_ips[rank], self._config.kv_port)
        pool = self._ports.get((decode, rank)) if self._config.fabric_kind == "eps" else None
        uplink, ports = None, []
        if pool is not None and pool.uplinks:
            uplink = hashed_uplink(self._config.ecmp_seed, flow, pool.uplinks)
            ports = pool.take(uplink)
        return await open_connection(
            self._prefill.gpu_ips[rank],
            peer,
            congestion_control=self._config.congestion_control,
            rate_bytes_per_s=self._config.emulated_rate_bytes_per_s,
            source_ports=ports,
            uplink=uplink,
        )
