"""How far a scheduler's prediction of a prefill's duration is off.

One draw a request, and two readings of it. On the prediction: a prefill takes what the timing model says, and the
scheduler's prediction is drawn around that, so that a change of the error changes no prefill. On the actual duration:
the scheduler predicts what the timing model says, and the machine deviates from it. Neither changes an arrival.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from workloads.seeds import normal

_PHI = NormalDist().cdf


@lru_cache(maxsize=64)
def lognormal_sigma(median_error: float) -> float:
    """The sigma at which half of the factors exp(sigma*z) lie within `median_error` of 1.

    Solves Phi(ln(1+e)/sigma) - Phi(ln(1-e)/sigma) = 1/2. Raises ValueError outside 0 <= e < 1.
    """
    if not 0 <= median_error < 1:
        raise ValueError(f"median_error is {median_error}; it is a share, at least 0 and below 1 (0.046 is 4.6 %)")
    if median_error == 0:
        return 0.0
    above, below = math.log1p(median_error), math.log1p(-median_error)
    low, high = 1e-12, 100.0
    for _ in range(200):
        sigma = math.sqrt(low * high)
        # The share within the band falls as sigma grows.
        if _PHI(above / sigma) - _PHI(below / sigma) > 0.5:
            low = sigma
        else:
            high = sigma
    return math.sqrt(low * high)


def prediction_factor(median_error: float, *, seed: int, request_id: str) -> float:
    """The draw of one request around the timing model: lognormal with median 1; exactly 1.0 at an error of 0.

    It depends on the seed and the request's id only, so that every fabric and policy sees the same errors, and a larger
    error is the same draw stretched.
    """
    return math.exp(lognormal_sigma(median_error) * normal(seed, "prediction", request_id))
