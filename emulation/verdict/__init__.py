"""Whether the machine kept up: evidence in, measures and a verdict out."""
