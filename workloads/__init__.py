"""What is asked of the cluster: requests, KV sizes, prefill plans, traces and tenants."""
