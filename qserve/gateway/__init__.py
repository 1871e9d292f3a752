"""The gateway: one port, one key, no torch. It admits, routes, relays and counts requests."""
