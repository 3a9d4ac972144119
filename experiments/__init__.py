"""What is run: the experiment spec and its YAML files."""
