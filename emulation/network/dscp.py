"""How a packet says which priority it has: the differentiated-services field that a sender sets and every link reads.

Level 0 goes first. Level n is code point n + 1; code point 0, which everything unmarked has (acknowledgements, probes),
goes with level 0. The two low bits of the field are ECN's and are left alone.
"""

LEVELS = 8  # as many as HTB has priorities
MASK = 0xFC


def tos(level: int) -> int:
    """The value of IP_TOS for a level. Raises ValueError outside 0..LEVELS - 1."""
    if not 0 <= level < LEVELS:
        raise ValueError(f"level is {level}: give 0 to {LEVELS - 1}")
    return (level + 1) << 2
