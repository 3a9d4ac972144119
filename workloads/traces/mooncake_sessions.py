"""Turns of sessions in Mooncake rows: what a row with a `session_id` holds of its prompt.

* **Deltas** (AIPerf, Dynamo's `mooncake-delta`): what is new in the turn. Its prompt is all that came before in the
  session, answers with it, and then the row's tokens: after 4,190 tokens and an answer of 592 a turn of 592 has a
  prompt of 5,374, of which 4,782 may be cached.
* **Whole prompts** (Dynamo's `mooncake`): its own prompt, as in a row without a session.

A row may say which (`context_mode`), and so may the source. Otherwise the block ids do: a turn whose first block is
that of its session's first turn repeats it, so it is a whole prompt; one with another first block holds what is new.
After a first turn that fills no block the ids tell nothing, and the rows are deltas. A file that contradicts what was
taken of it before is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from inputs.errors import shown
from workloads.traces.trace import TraceError

Rows: TypeAlias = Literal["deltas", "whole prompts"]
_MODES: Final[dict[str, Rows]] = {
    "deltas_without_responses": "deltas",
    "message_array_with_responses": "whole prompts",
}


@dataclass(slots=True)
class _Session:
    first_block: int | str | None  # None where the first prompt fills no block
    context_tokens: int  # of all its turns and their answers
    line: int
    answered: bool = True


class Sessions:
    """What was seen of each session. `rows`: what the source says that its rows hold, None where the file tells."""

    def __init__(self, path: Path, block_tokens: int, rows: Rows | None) -> None:
        self._path, self._block_tokens, self._by_source = path, block_tokens, rows
        self._told: Rows | None = None
        self._told_by_line = 0
        self._seen: dict[str, _Session] = {}

    def is_first(self, name: str) -> bool:
        """Whether no row of the session was seen."""
        return name not in self._seen

    def before(self, name: str, tokens: int, output: int | None, ids: list[int | str], mode: Any, line: int) -> int:
        """How many tokens of the turn's prompt its row leaves out, because they came before. Raises TraceError."""
        rows = self._said(mode, line)
        session = self._seen.get(name)
        if session is None:
            session = self._seen[name] = _Session(ids[0] if tokens >= self._block_tokens else None, 0, line)
            rows = "deltas"
        elif rows is None:
            rows = self._by_blocks(session, ids, line)
        before = session.context_tokens if rows == "deltas" else 0
        if before and not session.answered:
            raise TraceError(
                self._path,
                session.line,
                f"no output_length, and the turn of session {name} in line {line} follows the answer; give its length",
            )
        session.context_tokens, session.line, session.answered = (
            before + tokens + (output or 0),
            line,
            output is not None,
        )
        return before

    def _said(self, mode: Any, line: int) -> Rows | None:
        """What the row or the source says of it, None where neither does."""
        if mode is None:
            return self._by_source
        rows = _MODES.get(mode) if isinstance(mode, str) else None
        if rows is None:
            raise TraceError(
                self._path, line, f"context_mode {shown(mode)} is unknown; this reader knows {', '.join(_MODES)}"
            )
        if rows != (self._by_source or rows):
            raise TraceError(
                self._path, line, f"context_mode {mode} where the source says that rows are {self._by_source}; drop one"
            )
        return rows

    def _by_blocks(self, session: _Session, ids: list[int | str], line: int) -> Rows:
        told: Rows | None = None
        if session.first_block is not None:
            told = "whole prompts" if ids[0] == session.first_block else "deltas"
        if self._told is None:
            self._told, self._told_by_line = told or "deltas", line
        if told not in (None, self._told):
            raise TraceError(
                self._path,
                line,
                f"this turn of a session is one of {told} by its first block (is it that of the session's first "
                f"turn?), and since line {self._told_by_line} turns are read as {self._told}; give the source as "
                "mooncake-delta or mooncake-whole",
            )
        return self._told
