"""Readers of public trace formats, and the replay of what they read."""
