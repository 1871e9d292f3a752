"""Headers from the gateway to qserve's own workers. A client's headers never get there."""

from __future__ import annotations

__all__ = ["CLIENT"]

CLIENT = "x-qserve-client"
"""Whom a request counts for where work is shared out: nobody's key, but one and the same for a key's requests."""
