"""Grids of experiments: what their cells are, who runs them, and what came out."""
