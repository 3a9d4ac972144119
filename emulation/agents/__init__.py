"""One process per instance and the gateway: what runs inside the hosts of the testbed (standard library only)."""
