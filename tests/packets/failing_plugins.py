"""Plug-ins that fail while packets are on their way."""

from controllers.core.reservations import Reservations


class Forever:
    """A decode choice that never returns."""

    def choose(self, demand, candidates, now_s):
        while True:
            pass


class Nowhere:
    """A decode choice that answers an instance nobody has."""

    def choose(self, demand, candidates, now_s):
        return "d99"


class Broken(Reservations):
    """A commit rule with a bug."""

    def last_chunk_started(self, request_id, predicted_end_s, now_s):
        return self.no_such_attribute
