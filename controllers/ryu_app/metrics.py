"""What the controller counts, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_CONTROL_BUCKETS_S = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Metrics:
    """Counters of one controller process. Durations are wall seconds unless named otherwise."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = Counter("heliograph_events", "Northbound events", ["event", "status"], registry=self.registry)
        self.reply_s = Histogram(
            "heliograph_reply_seconds",
            "From a northbound event read to its answer",
            buckets=_CONTROL_BUCKETS_S,
            registry=self.registry,
        )
        self.transit_s = Histogram(
            "heliograph_event_transit_seconds",
            "From an event's own time to its arrival here",
            buckets=_CONTROL_BUCKETS_S,
            registry=self.registry,
        )
        self.window_states = Counter(
            "heliograph_windows", "Windows by the state they entered", ["state"], registry=self.registry
        )
        self.step_s = Histogram(
            "heliograph_switch_step_seconds",
            "Steps of a reconfiguration",
            ["step"],
            buckets=_CONTROL_BUCKETS_S,
            registry=self.registry,
        )
        self.circuits = Gauge("heliograph_circuits", "Circuits that stand", registry=self.registry)
        self.datapaths = Gauge("heliograph_datapaths", "Circuit switches connected", registry=self.registry)
        self.connections = Gauge("heliograph_connections", "Northbound connections", registry=self.registry)
        self.refused = Counter(
            "heliograph_refused", "Requests and connections not let in", ["status"], registry=self.registry
        )
        self.hung_up = Counter("heliograph_hung_up", "Clients gone in mid-request", registry=self.registry)
        self.faults = Counter("heliograph_faults", "Faults that make the run invalid", registry=self.registry)

    def text(self) -> bytes:
        """The exposition."""
        return bytes(generate_latest(self.registry))
