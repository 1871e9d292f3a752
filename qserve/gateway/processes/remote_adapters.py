"""Adapters in a gateway process: the supervisor loads them, behind the coordinator."""

from __future__ import annotations

from typing import Any

from qserve.gateway.processes.channel import Channel

__all__ = ["RemoteAdapters"]


class RemoteAdapters:
    """See `AdapterControl`."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def listed(self) -> dict[str, Any]:
        return dict(await self._channel.request("adapters", "listed"))

    async def load(self, name: str, path: str, model: str | None, load_inplace: bool) -> dict[str, Any]:
        return dict(await self._channel.request("adapters", "load", name, path, model, load_inplace))

    async def unload(self, name: str) -> dict[str, Any]:
        return dict(await self._channel.request("adapters", "unload", name))
