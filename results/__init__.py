"""What came out: the record schema, merging, metrics, artifacts, the table, the report and comparisons."""
