"""Headers from the gateway to qserve's own workers. A client's headers never get there."""

from __future__ import annotations

__all__ = ["CACHE_SALT", "CLIENT", "PRIORITY", "PROBE"]

CLIENT = "x-qserve-client"
"""Whom a request counts for where work is shared out: nobody's key, but one and the same for a key's requests."""
CACHE_SALT = "x-qserve-cache-salt"
"""In the place of the body's `cache_salt`: with whom the request may share what is cached of prompts."""
PRIORITY = "x-qserve-priority"
"""`background`: all other requests go first. Clients send it to the gateway, too."""
PROBE = "x-qserve-probe"
"""`1`: a command of qserve tests what the server can do. Clients send it to the gateway, which counts such a request
apart, so that one that is refused is no error of the service."""
