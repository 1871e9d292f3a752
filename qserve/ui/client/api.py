"""The UI's only way to models: HTTP to an OpenAI-compatible server, errors as sentences that a user can act on."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from qserve.client.answer import Answer, NotJson, Refused, Unreachable, is_error
from qserve.client.api import ApiClient
from qserve.client.error_text import error_message
from qserve.client.stream import NoEvent
from qserve.ui.settings import UISettings

__all__ = ["Api", "ApiFailure"]

_CONNECT_S = 10
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
        self._client = ApiClient(
            self._url, settings.api_key, socket=settings.api_socket or None, connect_timeout_s=_CONNECT_S
        )

    @property
    def url(self) -> str:
        """Address of the server, without `/v1`."""
        return self._url

    async def get(self, path: str) -> Any:
        """The JSON that GET answers. Raises ApiFailure."""
        return _json_of(path, _accepted(await self._ask("GET", path)))

    async def get_text(self, path: str) -> str:
        """The text that GET answers. Raises ApiFailure."""
        return _accepted(await self._ask("GET", path)).text

    async def get_any_status(self, path: str) -> Any:
        """As `get`, for routes that tell as much with an error's status (`/ready`)."""
        return _json_of(path, await self._ask("GET", path))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that POST answers. Raises ApiFailure."""
        return _json_of(path, _accepted(await self._ask("POST", path, body)))

    async def stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events as they come, without the last `[DONE]`. Raises ApiFailure, in the middle too.

        Closing the iterator closes the connection, by which the server knows that nobody reads on.
        """
        try:
            async with aclosing(self._client.stream(path, body)) as events:
                async for event in events:
                    if "error" in event:
                        raise _failure_of(event, 0)
                    yield event
        except Refused as refused:
            raise _refusal(refused.answer) from None
        except NoEvent as error:
            told = error.data[:_SHOWN_CHARS].decode(errors="replace")
            raise ApiFailure(f"the server sent an event that is not a JSON object: {told}", code="no_json") from None
        except Unreachable as error:
            raise _unreachable(self._url, error.reason) from error

    async def close(self) -> None:
        """End all connections."""
        await self._client.close()

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        try:
            return await self._client.ask(method, path, body)
        except Unreachable as error:
            raise _unreachable(self._url, error.reason) from error


def _accepted(answer: Answer) -> Answer:
    if is_error(answer.status):
        raise _refusal(answer)
    return answer


def _json_of(path: str, answer: Answer) -> Any:
    try:
        return answer.json()
    except NotJson as error:
        message = f"{path} answered with something that is not valid JSON"
        raise ApiFailure(message, answer.status, code="no_json") from error


def _refusal(answer: Answer) -> ApiFailure:
    try:
        return _failure_of(answer.json(), answer.status)
    except NotJson:
        told = answer.text[:_SHOWN_CHARS] or "nothing more"
        return ApiFailure(f"the server answered with status {answer.status}: {told}", answer.status)


def _failure_of(document: Any, status: int) -> ApiFailure:
    error = document.get("error") if isinstance(document, dict) else None
    told = error if isinstance(error, dict) else {}
    param, code = (value if isinstance(value := told.get(name), str) else None for name in ("param", "code"))
    sentence = error_message(document) or (
        f"the server answered with status {status}: {json.dumps(document, ensure_ascii=False)[:_SHOWN_CHARS]}"
    )
    return ApiFailure(sentence, status, param, code or "")


def _unreachable(url: str, error: Exception) -> ApiFailure:
    if isinstance(reason := getattr(error, "os_error", None), OSError):  # of a connection that was never made
        return ApiFailure(f"nothing answers at {url}; is the server running? ({_words_of(reason)})", code="unreachable")
    if isinstance(error, TimeoutError):
        return ApiFailure(f"{url} did not answer in time", code="timeout")
    return ApiFailure(f"the connection to {url} broke: {str(error) or type(error).__name__}", code="broken")


def _words_of(error: OSError) -> str:
    """`Connection refused`, without the address that asyncio repeats in its message."""
    known = error.errno if error.errno and error.errno > 0 else None
    return os.strerror(known) if known else error.strerror or str(error)
