"""A decode choice of one's own; the same code runs on packets and on circuits."""


class Stickiest:
    """The decode that served this session last, unless two requests wait there."""

    def choose(self, demand, candidates, now_s):
        """One of the candidates' names."""
        return min(candidates, key=lambda c: (not c.served or c.unfinished > 2, c.unfinished, c.rank)).decode
