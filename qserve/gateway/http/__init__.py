"""HTTP/1.1 towards clients: the server, its connections and their bounds, before a request is handled."""
