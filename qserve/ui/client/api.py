"""The UI's only way to models: HTTP to an OpenAI-compatible server, errors as sentences that a user can act on."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from qserve.ui.settings import UISettings

__all__ = ["Api", "ApiFailure"]

_CONNECT_S = 10
_FIRST_ERROR_STATUS = 400
_SHOWN_CHARS = 300


class ApiFailure(Exception):
    """The API refused or could not be asked. The message is the API's own sentence where there is one.

    Attributes:
        status: HTTP status; 0 where nothing answered.
        param: the field of the request that it is about, where the API says one.
        code: the API's; this client's own are `unreachable`, `broken`, `timeout` and `no_json`.
    """

    def __init__(self, message: str, status: int = 0, param: str | None = None, code: str = "") -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Api:
    """One server. Connections are kept between requests; `close` ends them."""

    def __init__(self, settings: UISettings) -> None:
        self._url = settings.url.rstrip("/").removesuffix("/v1")
        self._socket = settings.api_socket
        self._headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Address of the server, without `/v1`."""
        return self._url

    async def get(self, path: str) -> Any:
        """The JSON that GET answers. Raises ApiFailure."""
        async with self._request("GET", path) as response:
            return await _json_of(response)

    async def get_text(self, path: str) -> str:
        """The text that GET answers. Raises ApiFailure."""
        async with self._request("GET", path) as response:
            return await response.text()

    async def get_any_status(self, path: str) -> Any:
        """As `get`, for routes that tell as much with an error's status (`/ready`)."""
        async with self._request("GET", path, refuse=False) as response:
            return await _json_of(response)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that POST answers. Raises ApiFailure."""
        async with self._request("POST", path, body) as response:
            return await _json_of(response)

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events as they come, without the last `[DONE]`. Raises ApiFailure, in the middle too.

        Closing the iterator closes the connection, by which the server knows that nobody reads on.
        """
        async with self._request("POST", path, body) as response:
            async for line in _lines(response):
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = _event_of(data)
                if "error" in event:
                    raise _failure_of(event, 0)
                yield event

    async def close(self) -> None:
        """End all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None, refuse: bool = True
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Errors while connecting and errors while reading end up in the same words."""
        try:
            async with self._opened().request(method, self._url + path, json=body) as response:
                if refuse and response.status >= _FIRST_ERROR_STATUS:
                    raise await _refusal(response)
                yield response
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise _unreachable(self._url, error) from error

    def _opened(self) -> aiohttp.ClientSession:
        # Made on first use: a session belongs to the event loop that is running then.
        if self._session is None or self._session.closed:
            connector = aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                auto_decompress=True,
            )
        return self._session


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: aiohttp's own reader refuses long ones, and a piece of logprobs may be long."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _event_of(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        told = data[:_SHOWN_CHARS].decode(errors="replace")
        raise ApiFailure(f"the server sent an event that is not a JSON object: {told}", code="no_json")
    return event


async def _json_of(response: aiohttp.ClientResponse) -> Any:
    try:
        return json.loads(await response.read())
    except ValueError as error:
        message = f"{response.url.path} answered with something that is not valid JSON"
        raise ApiFailure(message, response.status, code="no_json") from error


async def _refusal(response: aiohttp.ClientResponse) -> ApiFailure:
    text, status = (await response.read()).decode(errors="replace"), response.status
    try:
        document = json.loads(text)
    except ValueError:
        return ApiFailure(f"the server answered with status {status}: {text[:_SHOWN_CHARS] or 'nothing more'}", status)
    return _failure_of(document, status)


def _failure_of(document: Any, status: int) -> ApiFailure:
    error = document.get("error") if isinstance(document, dict) else None
    told = error if isinstance(error, dict) else {}
    param, code = (value if isinstance(value := told.get(name), str) else None for name in ("param", "code"))
    return ApiFailure(_sentence(document, status), status, param, code or "")


def _sentence(document: Any, status: int) -> str:
    """The message of an error in OpenAI's shape, FastAPI's, or whatever it is."""
    if isinstance(document, dict):
        error = document.get("error")
        if isinstance(error, dict) and error.get("message"):
            return str(error["message"])
        for name in ("error", "message", "detail"):
            if isinstance(document.get(name), str):
                return str(document[name])
    return f"the server answered with status {status}: {json.dumps(document, ensure_ascii=False)[:_SHOWN_CHARS]}"


def _unreachable(url: str, error: Exception) -> ApiFailure:
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = _system_reason(error.os_error)
        return ApiFailure(f"nothing answers at {url}; is the server running? ({reason})", code="unreachable")
    if isinstance(error, TimeoutError):
        return ApiFailure(f"{url} did not answer in time", code="timeout")
    return ApiFailure(f"the connection to {url} broke: {str(error) or type(error).__name__}", code="broken")


def _system_reason(error: OSError) -> str:
    """`Connection refused`, without the address that asyncio repeats in its message."""
    known = error.errno if error.errno and error.errno > 0 else None
    return os.strerror(known) if known else error.strerror or str(error)
