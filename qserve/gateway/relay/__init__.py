"""One request on its way to a worker and back: the wait for a slot, the connection, the bytes, and what ends it."""
