"""How what a user wrote is read: files, values of options, and what is said of those that cannot be read."""
