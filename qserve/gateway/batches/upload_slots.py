"""Limits concurrent uploads: few in all, and per client no more than are left free for others (as `bodies.py`)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from qserve.wire.errors import ApiError

__all__ = ["UploadSlots"]

_AT_ONCE = 8
_RETRY_AFTER_S = 5


class UploadSlots:
    """Counts the running uploads by client."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def slot(self, client: str, wait_s: float) -> AsyncIterator[None]:
        """Holds a slot of `client`, once there is one. Raises ApiError 429 where there is none within `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while self._held[client] >= _AT_ONCE - self._held.total():
                    await self._freed.wait()
        except TimeoutError:
            message = f"{self._held.total()} files are being uploaded already, {self._held[client]} of them by you"
            raise ApiError(429, message, "too_many_uploads", retry_after_s=_RETRY_AFTER_S) from None
        self._held[client] += 1
        try:
            yield
        finally:
            self._held -= Counter([client])  # keeps no client with none
            self._freed.set()  # waiting uploads check again
            self._freed = asyncio.Event()
