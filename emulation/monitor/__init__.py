"""What looks at a run while its clock is on."""
