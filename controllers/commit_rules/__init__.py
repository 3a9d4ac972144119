"""The rules that say when a circuit is committed."""
