"""What one run of an experiment is made of, before anything is built."""
