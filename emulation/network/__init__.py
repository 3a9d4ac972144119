"""The emulated network: links, shaping, switches, and which uplink ECMP takes."""
