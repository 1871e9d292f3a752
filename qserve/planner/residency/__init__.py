"""Which models of a service are in memory together, by bytes: at rest, and while one of them starts."""
