"""Where checkpoints are found: a folder, `demo`, an alias, the local cache, or the hub by range requests."""

from __future__ import annotations

from qserve.hub.resolve import resolve

__all__ = ["resolve"]
