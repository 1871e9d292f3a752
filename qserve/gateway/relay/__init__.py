"""Relays a request to a worker: wait for a slot, connection, bytes of request and answer, early ends."""
