"""Which connections the northbound API holds: so many, so many of one client, and who gives way when there are more.

A flood costs its own client alone: every agent has an address of its own. Among the connections of one client those
give way that have never made a whole request, the oldest first; then those that wait for their next request, the
longest idle first; one whose request is being answered (a grant stream is answered for ever) never does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Connection:
    """One connection of a client. `close()` ends it; it counts until it has left."""

    def __init__(self, client: str, close: Callable[[], None]) -> None:
        self.client = client
        self.close = close
        #: It has made a whole request.
        self.has_asked = False
        #: A request of its is being answered.
        self.is_answered = False


class Connections:
    """The connections that are open. `most` in all, `most_of_one` of one client, of whom so many more are being
    closed at most."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        #: In the order in which they began to wait for a request.
        self._open: dict[Connection, None] = {}
        self._closing: set[Connection] = set()
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        """Those that hold a descriptor, the ones included that are being closed."""
        return len(self._open) + len(self._closing)

    def enter(self, connection: Connection) -> bool:
        """Take it in, where need be instead of another, which is closed; False where nobody can give way."""
        while self._of[connection.client] >= self._most_of_one:
            if not self._give_way(connection.client):
                return False
        while len(self._open) >= self._most:
            # whoever holds most of them, and more than the one who wants more; else that one
            own = self._of[connection.client]
            more = [client for client, number in self._of.most_common() if number > own]
            if not any(self._give_way(client) for client in [*more, connection.client]):
                return False
        self._open[connection] = None
        self._of[connection.client] += 1
        return True

    def wait(self, connection: Connection) -> None:
        """It waits for its next request from now on."""
        connection.is_answered = False
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def leave(self, connection: Connection) -> None:
        """It has been closed, by whomever."""
        self._closing.discard(connection)
        if connection in self._open:
            del self._open[connection]
            self._forget(connection)

    def _give_way(self, client: str) -> bool:
        own = [each for each in self._open if each.client == client and not each.is_answered]
        # sorting keeps the order in which they began to wait
        for connection in sorted(own, key=lambda each: each.has_asked)[:1]:
            del self._open[connection]
            self._forget(connection)
            self._closing.add(connection)
            connection.close()
            return True
        return False

    def _forget(self, connection: Connection) -> None:
        self._of[connection.client] -= 1
        if not self._of[connection.client]:
            del self._of[connection.client]
