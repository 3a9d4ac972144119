"""What each figure of a report means, in words."""

from __future__ import annotations

from typing import Any

from results.metrics.metrics import HIDDEN_SHARE_OF_PREFILL, PERCENTILE_METHOD, TAIL_SAMPLES


def definitions(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Terms and their meanings; ``config`` is the run's ``config.yaml``, for the SLO's multiple."""
    multiple = (config.get("slo") or {}).get("ttft_multiple")
    limit = f"{multiple:g} times" if isinstance(multiple, (int, float)) else "a multiple (slo.ttft_multiple) of"
    return [
        (
            "TTFT",
            "From the intended arrival of a request to its first token at the client, in seconds of the real cluster.",
        ),
        (
            "offered",
            "Measured requests; each ends completed, failed or unfinished. Warm-up requests are excluded and counted "
            "apart.",
        ),
        (
            "mean, p50, ...",
            f"Over the n completed requests. Percentiles by {PERCENTILE_METHOD}. A percentile q is given only if "
            f"n (1 - q) is at least {TAIL_SAMPLES}; otherwise it is undefined (-), with the reason.",
        ),
        ("queue", "From the request's arrival at its prefill instance to the actual start of its prefill."),
        ("prefill", "From the actual start to the actual end of the prefill."),
        (
            "circuit wait",
            "After the prefill's end: time without a live circuit, until the last KV byte of every rank. Circuits "
            "only.",
        ),
        (
            "transfer exposed",
            "After the prefill's end: time with a live circuit that the sender knows of (over packets: with the decode "
            "instance known), until the last KV byte of every rank.",
        ),
        (
            "control",
            "From the intended arrival to the request's arrival at its prefill instance, and, after the prefill's end, "
            "the time in which a circuit was live but its sender not yet told (over packets: the decode instance not "
            "yet known).",
        ),
        ("return", "From the last KV byte (or the prefill's end, if that is later) to the first token at the client."),
        (
            "exposed share",
            "Sum of circuit wait and transfer exposed, over the sum of TTFT. Nothing before the prefill's end counts.",
        ),
        (
            "hidden share",
            "Share of the completed requests whose prefix crossed, with the last KV byte at most "
            f"{HIDDEN_SHARE_OF_PREFILL:.0%} of the prefill after the prefill's end.",
        ),
        (
            "SLO attainment",
            f"Share of all offered requests with a TTFT of at most {limit} the tenant's median prefill time over its "
            "offered requests. Failed and unfinished requests are misses.",
        ),
        ("migrated", "Share of requests whose cached prefix had to cross to the decode instance, where that is known."),
        ("switches, reuses", "Windows that took a reconfiguration, and windows that found their circuit standing."),
        (
            "kept decode",
            "Of each two consecutive prefills of one instance, the share that went to the same decode instance.",
        ),
        (
            "shared an uplink",
            "Transfers over ECMP that were on one uplink, or one downlink, at the same time as a transfer of another "
            "GPU NIC, from first byte to last; the time counts once for each of them.",
        ),
        (
            "port occupancy",
            "Seconds that an instance's circuit ports were dark, live and moving KV (its bytes / goodput), or live and "
            "idle, over the windows of measured requests.",
        ),
        (
            "verdict",
            "Whether the machine kept up: valid, degraded or invalid, with the reasons. No figure counts without it.",
        ),
    ]
