"""The tables and files of a run: their columns, written and read back."""
