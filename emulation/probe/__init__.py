"""Readings of the built network before traffic: rates, round trips, paths."""
