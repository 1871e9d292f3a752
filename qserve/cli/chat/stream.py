"""One streamed answer from an OpenAI-compatible server, with the standard library alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from qserve.error_text import message_of
from qserve.errors import QserveError

__all__ = ["Delta", "NoAnswer", "stream_answer"]

_CONNECT_TIMEOUT_S = 10
_DATA = b"data:"


@dataclass(frozen=True)
class Delta:
    """A piece of an answer. `usage`: the token counts, in the last piece."""

    text: str = ""
    thought: str = ""
    usage: Mapping[str, Any] | None = None


class NoAnswer(QserveError):
    """The server refused, went away or broke off; the text says what to do."""


def stream_answer(url: str, api_key: str, body: Mapping[str, Any]) -> Generator[Delta, None, None]:
    """The pieces of the answer as they come. Closing the generator ends the request on the server, too.

    Raises NoAnswer.
    """
    with contextlib.closing(_connection(url)) as connection:
        answer = _answered(connection, url, api_key, body)
        try:
            yield from _deltas(answer)
        except (OSError, HTTPException) as error:
            raise NoAnswer(f"{url} broke off its answer: {error or type(error).__name__}") from None


def _connection(url: str) -> HTTPConnection:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT_S)


def _answered(connection: HTTPConnection, url: str, api_key: str, body: Mapping[str, Any]) -> HTTPResponse:
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {api_key}"} if api_key else {})}
    try:
        connection.connect()
        connection.sock.settimeout(None)  # the first token of a long prompt takes as long as it takes
        connection.request("POST", f"{urlsplit(url).path}/v1/chat/completions", json.dumps(body).encode(), headers)
        answer = connection.getresponse()
    except (OSError, HTTPException) as error:
        raise NoAnswer(f"no server answers at {url} ({error or type(error).__name__})") from None
    except ValueError:  # of http.client, for what no header may hold
        raise NoAnswer("the key of --api-key has characters that are not allowed in a key") from None
    if answer.status == 401:
        raise NoAnswer(f"{url} needs a key: --api-key, or QSERVE_API_KEY")
    if answer.status != 200:
        raise NoAnswer(f"{url} answered {answer.status}: {message_of(answer.read())}")
    return answer


def _deltas(answer: HTTPResponse) -> Iterator[Delta]:
    for line in answer:
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == b"[DONE]":
            return
        yield _delta(data)
    raise HTTPException("the end is missing; the service may have stopped")


def _delta(data: bytes) -> Delta:
    """The piece in one event. Raises NoAnswer for an error, HTTPException for what is no event of a chat."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise HTTPException("an event is cut off or not JSON") from None
    if isinstance(event, dict) and event.get("error"):
        raise NoAnswer(message_of(data))
    try:
        choices = event.get("choices") or [{}]
        delta, usage = choices[0].get("delta") or {}, event.get("usage") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return Delta(_text(delta.get("content")), _text(thought), {**usage} or None)
    except (AttributeError, LookupError, TypeError):
        raise HTTPException("an event is not one of OpenAI's chat completions") from None


def _text(value: Any) -> str:
    if not isinstance(value, str | None):
        raise TypeError(value)
    return value or ""
