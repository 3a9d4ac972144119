"""The schema of an experiment file: its keys, their units, and what is refused."""
