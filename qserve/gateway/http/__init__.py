"""HTTP/1.1 towards clients: the server, its connections and their bounds, before any request is looked at."""
