"""What is wired: Mininet `Topo` classes as pure data."""
