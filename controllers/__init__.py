"""What decides.

Calendars, Algorithm 1 and the decode choice (pure), and the Ryu app with its northbound API (shells).
"""
