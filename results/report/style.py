"""Colours and words that the report and the picture share.

Fabrics use the palette of Okabe and Ito (2008), safe for the common colour-vision deficiencies, and a dash pattern
each, so that no line is told by colour alone. Parts of TTFT: greys for what the fabric has no say in, colours for
what it adds.
"""

from __future__ import annotations

FABRIC_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
FABRIC_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MATPLOTLIB_DASHES = ("-", "--", ":", "-.", (0, (8, 3)), (0, (8, 3, 2, 3)))
PART_COLOURS = {
    "queue_s": "#9A9A9A",
    "prefill_s": "#D0D0D0",
    "circuit_wait_s": "#D55E00",
    "transfer_exposed_s": "#E69F00",
    "control_s": "#0072B2",
    "return_s": "#56B4E9",
}
PART_NAMES = {
    "queue_s": "queue",
    "prefill_s": "prefill",
    "circuit_wait_s": "circuit wait",
    "transfer_exposed_s": "transfer exposed",
    "control_s": "control",
    "return_s": "return",
}
CIRCUIT_COLOURS = {"dark": "#111111", "live after a switch": "#0072B2", "live on a standing circuit": "#E69F00"}


def fabric_style(index: int) -> tuple[str, int]:
    """Colour and number of the dash pattern of the index-th fabric; both cycle, the pair repeats only after 42."""
    return FABRIC_COLOURS[index % len(FABRIC_COLOURS)], index % len(FABRIC_DASHES)
