"""The gateway: one port, one key, no torch. It admits, routes, relays bytes and counts."""
