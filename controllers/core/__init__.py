"""The pure core: calendars, Algorithm 1, and what a circuit switch is sent. No socket, no clock, no Ryu."""
