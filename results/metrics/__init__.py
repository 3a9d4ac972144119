"""What the tables of a run amount to. Pure."""
