"""The paper's closed-form figures, computed by the rooms that own them."""

from __future__ import annotations

from collections.abc import Callable

from economics.bill import CircuitDesign, PacketDesign
from economics.cost import cost_row
from economics.link_budget import CIRCUIT_SWITCHES, LightPath, largest_loss_db, largest_tdecq_db
from economics.optics import OPTICS
from economics.price_book import load
from economics.requirements import MARGIN_DB, down
from workloads.kv import kv_model
from workloads.prefill import TIMINGS

_GPUS = 256  # priced per port, no ratio depends on the size
_LLAMA = "llama-3.1-70b"
#: The median migrated turn: new and cached tokens.
_NEW, _CACHED = 1_100, 65_600


def kv_bytes_per_token() -> float:
    return kv_model(_LLAMA, tp=4).bytes_per_token()


def kv_gb_of_64k_tokens() -> float:
    return kv_bytes_per_token() * 65_536 / 1e9


def kv_bytes_of_4096_tokens() -> float:
    return kv_bytes_per_token() * 4_096


def goodput_gb_per_s() -> float:
    return 400 * 0.9 / 8


def median_demand_gb_per_s() -> float:
    """KV bytes of one rank over the prefill time, at the medians of the workload."""
    return kv_model(_LLAMA, tp=4).rank_bytes(_NEW + _CACHED) / TIMINGS["h100-tp4"].duration_s(_NEW, _CACHED) / 1e9


def added_at_half_of_400g_ms() -> float:
    """What the turn with the median lengths adds to its TTFT at 22.5 GB/s, layer-wise."""
    transfer_s = kv_model(_LLAMA, tp=4).rank_bytes(_NEW + _CACHED) / 22.5e9
    return 1e3 * (transfer_s - TIMINGS["h100-tp4"].duration_s(_NEW, _CACHED))


def _packet_ratio(uplinks: int, book: str) -> float:
    return cost_row(PacketDesign(uplinks=uplinks), _GPUS, load(book)).ratio_to_eps_2to1.value


def _circuit_ratio(optics: str, ports: int, book: str, to: str = "2to1") -> float:
    row = cost_row(CircuitDesign(optics, ports), _GPUS, load(book))
    return (row.ratio_to_eps_2to1 if to == "2to1" else row.ratio_to_eps_3to1).value


def _worst_path() -> LightPath:
    return LightPath(ocs_loss_db=CIRCUIT_SWITCHES[384].loss_db)


def _tdecq(optics: str) -> float:
    found = largest_tdecq_db(OPTICS[optics], _worst_path().loss_db, wanted_margin_db=MARGIN_DB)
    assert found is not None
    return down(found)


def _loss(optics: str) -> float:
    found = largest_loss_db(OPTICS[optics], wanted_margin_db=MARGIN_DB)
    assert found is not None
    return found


EXACT: dict[str, Callable[[], float]] = {
    "kv-bytes-per-token": kv_bytes_per_token,
    "kv-gb-of-64k": kv_gb_of_64k_tokens,
    "kv-bytes-of-4096": kv_bytes_of_4096_tokens,
    "goodput": goodput_gb_per_s,
    "median-demand": median_demand_gb_per_s,
    "added-at-half": added_at_half_of_400g_ms,
    "cost-1to1-a": lambda: _packet_ratio(32, "A"),
    "cost-1to1-b": lambda: _packet_ratio(32, "B"),
    "cost-ocs-2to1-a": lambda: _circuit_ratio("fr4", 1, "A"),
    "cost-ocs-2to1-b": lambda: _circuit_ratio("fr4", 2, "B"),
    "cost-ocs-3to1-a": lambda: _circuit_ratio("fr4", 1, "A", "3to1"),
    "cost-ocs-3to1-b": lambda: _circuit_ratio("fr4", 2, "B", "3to1"),
    "cost-dr4-a": lambda: _circuit_ratio("dr4", 1, "A"),
    "cost-dr4-b": lambda: _circuit_ratio("dr4", 2, "B"),
    "reach": lambda: float(CircuitDesign("fr4", 1).reach),
    "worst-loss": lambda: _worst_path().loss_db,
    "tdecq-dr4": lambda: _tdecq("dr4"),
    "tdecq-fr4": lambda: _tdecq("fr4"),
    "loss-dr4": lambda: _loss("dr4"),
    "loss-fr4": lambda: _loss("fr4"),
    "channel-dr4": lambda: OPTICS["dr4"].allocation_db,
    "channel-fr4": lambda: OPTICS["fr4"].allocation_db,
    "power-ocs": lambda: load("A").power_w.ocs_port.value,
    "power-eps": lambda: load("A").power_w.switch_port_400g.value,
}
