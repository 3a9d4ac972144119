"""The source paper's figures as data, and what this project measures beside them."""
