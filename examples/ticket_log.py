"""A trace format of one's own: a log with a line for each request, `seconds user prompt_tokens answer_tokens`.

In an experiment:     tenants: [{name: support, source: "ticket_log.py:TicketLog", path: tickets.log}]
Look at it first:     ./heliograph trace tickets.log --source ticket_log.py:TicketLog

A user's next prompt begins with the one before and its answer, so those tokens are a cached prefix.
"""

from collections.abc import Iterator
from pathlib import Path

from workloads.traces.own import OwnRow


class TicketLog:
    """`rows` yields the requests in order of time. Whatever it raises is said with the number of the row."""

    def rows(self, path: Path) -> Iterator[OwnRow]:
        """One row for each line that is not a comment."""
        held_tokens: dict[str, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            seconds, user, prompt, answer = line.split()
            cached = min(held_tokens.get(user, 0), int(prompt))
            held_tokens[user] = int(prompt) + int(answer)
            yield OwnRow(float(seconds), int(prompt), cached, session=user, output_tokens=int(answer))
