"""The one place where real units become emulated ones.

A real cluster (400 Gbit/s, 21 GB of KV cache, 25 ms) is emulated with `rate_scale` s and `time_dilation` d:

    emulated bytes        = real bytes x s
    emulated bytes per s  = real bytes per s x s / d
    wall-clock seconds    = real seconds x d

so that a transfer of B bytes at rate R takes (B s) / (R s / d) = d B / R seconds of wall clock: B / R real seconds.
What does not scale: the size of a packet, the round-trip time, controller latency, queues of a few packets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleModel:
    """Conversion between real and emulated bytes, rates and durations.

    rate_scale: emulated bytes for one real byte, in (0, 1].
    time_dilation: wall-clock seconds for one real second, >= 1.
    Raises ValueError when either is outside its range or not finite.
    """

    rate_scale: float
    time_dilation: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate_scale) and 0 < self.rate_scale <= 1):
            raise ValueError(f"rate_scale is {self.rate_scale}: give a number in (0, 1], such as 1.0e-4")
        if not (math.isfinite(self.time_dilation) and self.time_dilation >= 1):
            raise ValueError(f"time_dilation is {self.time_dilation}: give a finite number >= 1 (1 = no dilation)")

    def emulated_bytes(self, real_bytes: float) -> int:
        """Bytes to send for `real_bytes` real ones: the nearest whole number, but never none for something.

        Monotone, so a stream released by converting its running total neither shrinks nor overshoots its total.
        """
        if not (math.isfinite(real_bytes) and real_bytes >= 0):
            raise ValueError(f"{real_bytes} real bytes: must be finite and >= 0")
        if real_bytes == 0:
            return 0
        return max(1, round(real_bytes * self.rate_scale))

    def emulated_bytes_per_s(self, real_bytes_per_s: float) -> float:
        """Wall-clock rate in bytes per second of a real rate in bytes per second."""
        return real_bytes_per_s * self.rate_scale / self.time_dilation

    def real_bytes_per_s(self, emulated_bytes_per_s: float) -> float:
        """Inverse of `emulated_bytes_per_s`."""
        return emulated_bytes_per_s * self.time_dilation / self.rate_scale

    def wall_s(self, real_s: float) -> float:
        """Wall-clock seconds that `real_s` real seconds take."""
        return real_s * self.time_dilation

    def real_s(self, wall_s: float) -> float:
        """Real seconds that `wall_s` wall-clock seconds stand for."""
        return wall_s / self.time_dilation
