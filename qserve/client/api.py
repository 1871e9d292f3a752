"""Requests that are awaited, over TCP or a Unix socket: whole answers, and streams of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from qserve.client.answer import Answer, Refused, Unreachable, is_error, key_header
from qserve.client.stream import EventStream

__all__ = ["ApiClient"]

_END_S = 1.0


class ApiClient:
    """One server. Connections are kept between requests, any number at once; `close` or `async with` ends them."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        socket: str | Path | None = None,
        timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
    ) -> None:
        """`socket` is asked in place of the host in `url`; `timeout_s` is for a request and its whole answer."""
        self._url, self._socket = url.rstrip("/"), None if socket is None else str(socket)
        self._headers = key_header(api_key)
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> Answer:
        """The answer of any status; a mapping is sent as JSON. Raises Unreachable."""
        async with self._answered(method, path, body) as response:
            return Answer(response.status, response.headers, await response.read())

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events that POST answers, as they come. Closing the iterator closes the connection.

        Raises Refused, Unreachable where the connection breaks, NoEvent for an event that holds no object.
        """
        async with self._answered("POST", path, body) as response:
            if is_error(response.status):
                raise Refused(Answer(response.status, response.headers, await response.read()))
            events = EventStream()
            async for chunk in response.content.iter_any():
                for event in events.feed(chunk):
                    yield event
                if events.is_done:
                    await _read_end(response)
                    return
            for event in events.end():
                yield event

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Exceptions while connecting and while reading become one."""
        sent: dict[str, Any] = {"data": body} if isinstance(body, bytes) else {"json": body}
        try:
            async with self._opened().request(method, self._url + path, **sent) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, EOFError) as error:  # EOFError: asyncio's IncompleteReadError
            raise Unreachable(error) from error

    def _opened(self) -> aiohttp.ClientSession:
        # Made on first use: a session belongs to the event loop that is running then.
        if self._session is None or self._session.closed:
            connector = aiohttp.UnixConnector(self._socket, limit=0) if self._socket else aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=self._timeout)
        return self._session


async def _read_end(response: aiohttp.ClientResponse) -> None:
    """What a body has after its last event: a connection is kept only if its answer was read to the end."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_END_S):
            await response.read()
