"""One fabric and one seed in virtual time: the same queues, streams and decisions as the emulation, and ideal flows.

The gateway sends each request to a prefill instance by the experiment's prefill choice; the instance's queue yields the
events of Algorithm 1; the controller's own core answers them; a network carries the KV; the first token returns when
the last byte of every rank has arrived.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd

from controllers.core.demand import Demand, FabricController, Placement
from controllers.core.reservations import Reservations
from experiments.schema.spec import Eps, Experiment, Fabric, Ocs
from inputs.plugin_fault import blamed
from results.metrics.accounting import part_bytes_of, with_sizes
from results.metrics.collisions import with_collisions
from results.metrics.merge import Frames, merge
from results.records.schema import LINKS
from simulation.clock import VirtualClock
from simulation.constants import Constants
from simulation.controller_core import build_core
from simulation.job import SimulatedRequest, circuit_events
from simulation.networks import Ceiling, CircuitNetwork, Network, PacketNetwork
from simulation.packet_fabric import PacketFabric
from simulation.release import release_pieces
from workloads.prefill_choice import load as load_prefill_choice
from workloads.prefill_router import PrefillRouter
from workloads.request import Request
from workloads.serving import KvStream, LastChunkStarted, PrefillQueue, PrefillStarted, kv_due_s

#: Real seconds after the last arrival that a run waits for what is under way; the emulation's own.
DRAIN_S = 45.0
REQUEST_FIELDS = [each.name for each in fields(Request)]


@dataclass
class TwinResult:
    """Tables as an emulation has them, and how much there was to do: `actions` of the clock, rates computed."""

    frames: Frames
    links: pd.DataFrame
    end_s: float
    actions: int = 0
    flow_updates: int = 0


@dataclass
class Twin:
    """A fabric of an experiment with its requests.

    `uplinks`: what an emulation recorded, by request id and rank; `stand`: circuits that stand before the clock,
    prefill -> decode. `run()` once. Raises ValueError for a policy or routing that is not there,
    and PluginFault where a plug-in fails.
    """

    experiment: Experiment
    fabric: Fabric
    seed: int
    requests: Sequence[Request]
    constants: Constants = field(default_factory=Constants)
    uplinks: Mapping[tuple[str, int], int] = field(default_factory=dict)
    stand: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> TwinResult:
        """Until every request has its first token, or the drain is over."""
        commit = getattr(self.fabric, "commit", "")
        blame = blamed(f"commit rule {commit}") if ":" in commit else nullcontext()
        with _collector_paused(), blame:
            return self._run()

    def _run(self) -> TwinResult:
        experiment = self.experiment
        self._kv, self._timing = experiment.kv, experiment.timing
        self._owned = experiment.owned_instances()
        self._clock = VirtualClock()
        self._core: FabricController = build_core(experiment, self.fabric, self.seed, self.constants)
        self._jobs: dict[str, SimulatedRequest] = {}
        self._router = PrefillRouter(load_prefill_choice(experiment.prefill.choice, self.seed), self._timing)
        names = [instance.name for instance in experiment.shape.instances if instance.role == "prefill"]
        self._queues = {name: PrefillQueue(self._timing, self._kv.layers) for name in names}
        self._planned_s: dict[str, float] = {}
        self._network = self._build_network()
        for index, request in enumerate(self.requests):
            self._clock.at(request.arrival_s, lambda now_s, i=index, r=request: self._arrive(i, r, now_s))  # type: ignore[misc]
        last_s = max((request.arrival_s for request in self.requests), default=0.0)
        self._clock.run(last_s + DRAIN_S)
        self._network.close(self._clock.now_s)
        return self._result()

    def _build_network(self) -> Network:
        fabric = self.fabric
        if isinstance(fabric, Eps):
            self._packets = PacketFabric(self.experiment, fabric)
            return PacketNetwork(self._clock, self._packets, self._part_arrived, self.uplinks)
        if isinstance(fabric, Ocs):
            assert isinstance(self._core, Reservations)
            self._core.stand(self.stand)
            return CircuitNetwork(
                self._clock,
                self._core,
                self._jobs,
                self._part_arrived,
                bytes_per_s=self.experiment.kv_goodput_bytes_per_s,
                reconfiguration_s=fabric.reconfiguration_s,
                constants=self.constants,
            )
        return Ceiling(self._clock, self._part_arrived)

    # -- the gateway ----------------------------------------------------------------------------------------------

    def _arrive(self, index: int, request: Request, now_s: float) -> None:
        prefill = self._router.send(request, self._owned[request.tenant].prefills, now_s)
        job = self._jobs[request.id] = SimulatedRequest(index, request, prefill, now_s)
        self._clock.at(now_s + self.constants.request_s, lambda at_s: self._receive(job, at_s))

    def _first_token(self, job: SimulatedRequest, now_s: float) -> None:
        job.first_token_s = now_s
        self._router.ended(job.request.id, now_s)

    # -- a prefill instance -----------------------------------------------------------------------------------------

    def _receive(self, job: SimulatedRequest, now_s: float) -> None:
        job.received_s = now_s
        queue = self._queues[job.prefill]
        plan = queue.submit(job.request, now_s)
        request = job.request
        demand = Demand(
            request_id=request.id,
            tenant=request.tenant,
            session=request.session,
            prefill=job.prefill,
            head_bytes=self._kv.rank_head_bytes(request.cached_tokens, request.new_tokens),
            tail_bytes=self._kv.rank_bytes(request.new_tokens),
            layer_bytes=self._kv.rank_layer_bytes(plan.chunks[-1].new_tokens),
            predicted_prefill_s=request.predicted_prefill_s(self._timing),
            migrates=request.migrates,
        )
        # admitted goes out before the prefill may start at once
        self._tell(now_s, lambda at_s: self._answered(job, self._core.admitted(demand, at_s), at_s))
        self._advance(job.prefill, now_s)

    def _advance(self, prefill: str, now_s: float) -> None:
        queue = self._queues[prefill]
        for event in queue.advance(now_s):
            job = self._jobs[event.request.id]
            if isinstance(event, PrefillStarted):
                self._prefill_started(job, event, now_s)
            elif isinstance(event, LastChunkStarted):
                self._last_chunk_started(job, event.predicted_end_s, now_s)
            else:
                self._prefill_ended(job, now_s)
        next_s = queue.next_s()
        # once for each moment: an arrival behind a long queue must not plan the queue's next event again
        if next_s is not None and next_s != self._planned_s.get(prefill):
            self._planned_s[prefill] = next_s
            self._clock.at(next_s, lambda at_s: self._advance(prefill, at_s))

    def _prefill_started(self, job: SimulatedRequest, event: PrefillStarted, now_s: float) -> None:
        job.plan, job.start_s = event.plan, event.start_s
        end_s = event.predicted_end_s
        self._tell(
            now_s, lambda at_s: self._answered(job, self._core.prefill_started(job.request.id, end_s, at_s), at_s)
        )
        if job.placement is not None:  # chosen at admission
            self._make_stream(job, now_s)

    def _last_chunk_started(self, job: SimulatedRequest, predicted_end_s: float, now_s: float) -> None:
        self._tell_last_chunk(job, predicted_end_s, now_s)
        assert job.plan is not None
        assert job.start_s is not None
        if self.fabric.kind == "ocs" and predicted_end_s > job.start_s + job.plan.duration_s:
            # it will be over sooner than the controller was told, and this is when its KV should be moving
            rate = self.experiment.kv_goodput_bytes_per_s
            due_s = kv_due_s(job.plan, self._kv, self.experiment.transfer, job.start_s, rate)
            self._clock.at(max(due_s, now_s), lambda at_s: self._kv_ready(job, at_s))

    def _kv_ready(self, job: SimulatedRequest, now_s: float) -> None:
        """Tell the controller again of the last chunk, once: its KV is ready and no circuit is live for it."""
        assert job.plan is not None
        assert job.start_s is not None
        if not job.told_ready and not {told[0] for told in job.told_live} & {"tail", "all"}:
            job.told_ready = True
            self._tell_last_chunk(job, job.start_s + job.plan.duration_s, now_s)

    def _tell_last_chunk(self, job: SimulatedRequest, predicted_end_s: float, now_s: float) -> None:
        name = job.request.id
        self._tell(
            now_s, lambda at_s: self._answered(job, self._core.last_chunk_started(name, predicted_end_s, at_s), at_s)
        )

    def _prefill_ended(self, job: SimulatedRequest, now_s: float) -> None:
        job.end_s = now_s
        if job.placement is None:  # a policy that asks for nothing before there is KV
            self._kv_ready(job, now_s)

    # -- the controller ---------------------------------------------------------------------------------------------

    def _tell(self, now_s: float, event: Any) -> None:
        """An event reaches the controller `control_s` later, in order."""
        if self.constants.control_s:
            self._clock.at(now_s + self.constants.control_s, event)
        else:
            event(now_s)

    def _answered(self, job: SimulatedRequest, placement: Placement | None, now_s: float) -> None:
        if placement is None:
            return  # nothing was decided, so nothing new can be due
        if job.placement is None:
            job.placement, job.decided_s = placement, now_s
            if job.start_s is not None:
                self._make_stream(job, now_s)
        self._network.decided(now_s)

    def _make_stream(self, job: SimulatedRequest, now_s: float) -> None:
        if job.stream is not None:
            return
        assert job.plan is not None
        assert job.start_s is not None
        assert job.placement is not None
        job.stream = KvStream(job.plan, self._kv, self.experiment.transfer, job.start_s, job.placement.head_moves)
        job.pieces = release_pieces(job.stream)
        self._network.placed(job, now_s)

    # -- the transfer -----------------------------------------------------------------------------------------------

    def _part_arrived(self, job: SimulatedRequest, part: str, now_s: float) -> None:
        self._tell(now_s, lambda at_s: self._part_done(job, part, at_s))
        if part != "head":
            job.last_byte_s = now_s
            self._clock.at(now_s + self.constants.return_s, lambda at_s: self._first_token(job, at_s))

    def _part_done(self, job: SimulatedRequest, part: str, now_s: float) -> None:
        self._core.transfer_done(job.request.id, part, now_s)
        self._network.decided(now_s)

    # -- what came out ----------------------------------------------------------------------------------------------

    def _result(self) -> TwinResult:
        ranks = self.experiment.cluster.gpus_per_instance
        records = [record for job in self._jobs.values() for record in job.records(ranks, alike=self._network.alike)]
        events = circuit_events(self._core) if isinstance(self._core, Reservations) else []
        frames = merge(
            records,
            events,
            [{name: getattr(request, name) for name in REQUEST_FIELDS} for request in self.requests],
            kind=self.fabric.kind,
            ranks=None if self.fabric.kind == "none" else ranks,
        )
        if frames.inconsistencies:
            raise AssertionError(f"the twin contradicts itself: {frames.inconsistencies[0]}")
        frames.circuits = with_sizes(frames.circuits, frames.requests, part_bytes_of(self.experiment.kv))
        if isinstance(self.fabric, Eps) and self.fabric.routing == "ecmp":
            frames.transfers = with_collisions(frames.transfers, self._packets.paths)
        rows: list[dict[str, Any]] = []
        updates = 0
        if isinstance(self._network, PacketNetwork):
            rows = self._packets.link_rows(self._network.flows.carried_bytes)
            updates = self._network.flows.recomputed
        return TwinResult(frames, LINKS.frame(rows), self._clock.now_s, self._clock.actions, updates)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A run makes hundreds of thousands of objects that live to its end, in no cycle: looking for garbage among them
    again and again takes a fifth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
