"""Who loads adapters into the workers: the supervisor, in its own process or behind the coordinator's channel."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["AdapterControl"]


class AdapterControl(Protocol):
    """Documents as `wire/responses/adapters.py` has them. Raises ApiError."""

    async def listed(self) -> dict[str, Any]:
        """All adapters that were loaded, and the room that there is."""

    async def load(self, name: str, path: str, model: str | None, load_inplace: bool) -> dict[str, Any]:
        """Load one into all replicas of its model, or into none. Its name answers when this returns."""

    async def unload(self, name: str) -> dict[str, Any]:
        """Unload one. Its name is unknown when this returns; requests that run are answered."""
