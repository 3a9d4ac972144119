"""How packets run it: the testbed, its agents, its measurements."""
