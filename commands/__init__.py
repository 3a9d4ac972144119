"""The commands of `./heliograph`, a module for each group of them; cli.py only names them."""
