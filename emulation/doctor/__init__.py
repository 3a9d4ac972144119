"""What this machine can do, and whether an experiment will be valid on it."""
