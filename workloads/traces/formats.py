"""Every trace format, and which one a file is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from inputs.csv_file import separated_otherwise
from inputs.packed import BadContent
from inputs.text_file import refuse_encoding
from workloads.tenants import CONTEXT_LIMIT_TOKENS, TimeUnit
from workloads.traces import (
    agentx,
    agentx_turns,
    azure,
    bailian,
    burstgpt,
    mooncake,
    splitwise,
    tracelab,
    tracelab_rounds,
    vidur,
)
from workloads.traces.own import names_plugin, own_format
from workloads.traces.reading import Format, TraceReading
from workloads.traces.text import head
from workloads.traces.trace import TraceError

AUTO: Final = "auto"
FORMATS: Final = (
    mooncake.FORMAT,
    azure.FORMAT,
    agentx.FORMAT,
    agentx_turns.FORMAT,
    tracelab.FORMAT,
    tracelab.WITHOUT_ARRIVALS,
    tracelab_rounds.FORMAT,
    bailian.FORMAT,
    burstgpt.FORMAT,
    vidur.FORMAT,
    vidur.LENGTHS,
    splitwise.FORMAT,
    mooncake.DELTAS,
    mooncake.WHOLE,
)
#: What `source` may be for a trace; one name may cover several layouts of the same corpus, told apart by content.
SOURCES: Final = (AUTO, *dict.fromkeys(form.name for form in FORMATS))


def format_of(path: str | Path, source: str = AUTO) -> Format:
    """The format of a file: by its content, among those of `source`; a plug-in's own where `source` names one. Raises
    TraceError where none fits, ValueError for an unknown source."""
    if names_plugin(source):
        return own_format(source)
    if source not in SOURCES:
        raise ValueError(f"unknown source {source!r}; known sources: {', '.join(SOURCES)}")
    candidates = [form for form in FORMATS if source in (AUTO, form.name)]
    start = head(Path(path))
    matching = [form for form in candidates if form.matches(start)]
    if matching:
        return matching[0]
    if source != AUTO:
        # The reader of the format says what is wrong, with its line.
        return candidates[0]
    if not start.strip():
        raise TraceError(path, None, "the trace has no rows")
    titles = ", ".join(form.title for form in FORMATS)
    raise TraceError(path, 1, f"the first row is of no known format ({titles}); {_remedy(start)}")


def _remedy(start: bytes) -> str:
    try:
        refuse_encoding(start)
    except BadContent as error:
        return str(error)
    return separated_otherwise(start.decode("utf-8", "replace")) or "give source, or convert the file"


def open_trace(
    path: str | Path,
    source: str = AUTO,
    *,
    max_context_tokens: int = CONTEXT_LIMIT_TOKENS,
    time_unit: TimeUnit | None = None,
) -> TraceReading:
    """A pass over the trace. Raises as `format_of`; iterating raises TraceError."""
    return TraceReading(path, format_of(path, source), max_context_tokens=max_context_tokens, time_unit=time_unit)
