"""Request bodies in memory: one budget for all of them, and a fair share of it for each client.

A body counts from before its first byte is read until the worker has it. What does not fit stays unread, so that its
client blocks in send. A client may hold as many bytes as are free at that time: half of all when alone, less beside
others (the dynamic threshold of shared buffers in switches: Choudhury and Hahne, 1998), so that new clients find space.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from starlette.types import Receive, Scope

from qserve.gateway.auth import client_of
from qserve.gateway.limits import check_head, read_checked_body
from qserve.gateway.settings import GatewaySettings
from qserve.units import KIB, format_bytes
from qserve.wire.errors import ApiError

__all__ = ["Bodies", "Body", "BodyBudget"]

# Smaller bodies need no share, and have this part of the budget to themselves.
_SMALL_BYTES = 128 * KIB
_PART_OF_SMALL = 8
_RETRY_AFTER_S = 5


class BodyBudget:
    """Bytes held by each client. Pure."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: Counter[str] = Counter()
        self.num_bytes = 0

    def fits(self, client: str, num_bytes: int) -> bool:
        """Whether `client` may hold `num_bytes` more now."""
        if num_bytes <= _SMALL_BYTES:
            return self.num_bytes + num_bytes <= self._max_bytes
        num_free = self._max_bytes - self._max_bytes // _PART_OF_SMALL - self.num_bytes
        return self._held[client] + num_bytes <= num_free

    def add(self, client: str, num_bytes: int) -> None:
        """`client` holds `num_bytes` more, or fewer."""
        self.num_bytes += num_bytes
        self._held[client] += num_bytes
        if not self._held[client]:
            del self._held[client]


class Body:
    """The body of one request. `data` is available until `drop`."""

    __slots__ = ("_give_back", "data")

    def __init__(self, data: bytes, give_back: Callable[[], None] = lambda: None) -> None:
        """`give_back` is called once, when it is dropped."""
        self.data = data
        self._give_back: Callable[[], None] | None = give_back

    def drop(self) -> None:
        """Frees the body: the worker has it, or never will."""
        self.data = b""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class Bodies:
    """Reads the bodies of all requests within one budget."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        # One body of the longest that is allowed must fit beside others.
        self._budget = BodyBudget(max(settings.max_bodies_bytes, 4 * settings.max_body_bytes))
        self._freed = asyncio.Event()
        self._num_waiting = 0

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        return self._budget.num_bytes

    def read(self, scope: Scope, receive: Receive, *, is_json: bool = False) -> _Reading:
        """`async with` reads the whole body once there is space for it, and drops it at the end at the latest.

        Raises ApiError: 415 for what is compressed (where `is_json`, also for what is not declared as JSON), 413 for
        what is too long, 408 for what stops arriving, 429 where there is no space in time.
        """
        return _Reading(self, scope, receive, is_json)

    async def held(self, scope: Scope, receive: Receive, is_json: bool) -> Body:
        """The whole body, which counts until it is dropped."""
        max_bytes = self._settings.max_body_bytes
        head = check_head(scope, max_bytes, is_json=is_json)
        client = client_of(scope)
        num_reserved = max_bytes if head.is_chunked else head.num_bytes
        if not self._budget.fits(client, num_reserved):
            await self._wait_for(client, num_reserved)
        self._budget.add(client, num_reserved)
        body = Body(b"", lambda: self._give_back(client, num_reserved))
        try:
            body.data = await read_checked_body(receive, max_bytes, self._settings.body_idle_timeout_s)
        except BaseException:
            body.drop()
            raise
        if num_reserved != len(body.data):
            self._give_back(client, num_reserved - len(body.data))
            num_reserved = len(body.data)
        return body

    async def _wait_for(self, client: str, num_bytes: int) -> None:
        self._num_waiting += 1
        try:
            async with asyncio.timeout(self._settings.body_idle_timeout_s):
                while not self._budget.fits(client, num_bytes):
                    await self._freed.wait()
        except TimeoutError:
            held = format_bytes(self._budget.num_bytes)
            message = f"requests of {held} are being read already, and there was no space for this one; try again later"
            raise ApiError(429, message, "queue_full", retry_after_s=_RETRY_AFTER_S) from None
        finally:
            self._num_waiting -= 1

    def _give_back(self, client: str, num_bytes: int) -> None:
        if num_bytes:
            self._budget.add(client, -num_bytes)
        if self._num_waiting:
            self._freed.set()  # waiting requests check again
            self._freed = asyncio.Event()


class _Reading:
    """A body while it is needed."""

    __slots__ = ("_bodies", "_body", "_is_json", "_receive", "_scope")

    def __init__(self, bodies: Bodies, scope: Scope, receive: Receive, is_json: bool) -> None:
        self._bodies = bodies
        self._scope = scope
        self._receive = receive
        self._is_json = is_json

    async def __aenter__(self) -> Body:
        self._body = await self._bodies.held(self._scope, self._receive, self._is_json)
        return self._body

    async def __aexit__(self, *_: object) -> None:
        self._body.drop()
