"""One request on its way to a worker and back: the wait for a place, the connection, the bytes, and what ends it."""
