"""Headers from the gateway to qserve's own workers, and of clients to it. A client's headers never get to a worker."""

from __future__ import annotations

__all__ = ["CACHE_SALT", "CLIENT", "DEADLINE", "JOURNAL", "PRIORITY", "PROBE"]

CLIENT = "x-qserve-client"
"""Whom a request counts for where work is shared out: nobody's key, but one and the same for a key's requests."""
CACHE_SALT = "x-qserve-cache-salt"
"""In the place of the body's `cache_salt`: with whom the request may share what is cached of prompts."""
PRIORITY = "x-qserve-priority"
"""`background`: all other requests go first; clients send it to the gateway, too. `high`: of a key that goes before
others, which the gateway alone says."""
PROBE = "x-qserve-probe"
"""`1`: a command of qserve tests what the server can do. Clients send it to the gateway, which counts such a request
apart, so that one that is refused is no error of the service."""
JOURNAL = "x-qserve-journal"
"""The worker writes what it takes to continue a stream before each event, in lines that begin with `:j` (comments of
server-sent events), which the gateway keeps from the client. The value is a number of bytes: of such lines from a
worker that died, which stand behind the body; 0 at first. A stream that is continued begins with its first event.
A first line that begins with `:j~` says that figures in events may differ in their last digits when they are made
again, and nothing else: their number counts then, and the worker itself holds each token against its lines."""
DEADLINE = "x-qserve-deadline-ms"
"""From a client to the gateway, which keeps it: milliseconds from the request's arrival to the end of its answer."""
