"""The Ryu app around the core: OpenFlow 1.3 below, the northbound API above."""
