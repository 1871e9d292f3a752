"""One streamed answer from an OpenAI-compatible server, with the standard library alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qserve.client.answer import Answer, Unreachable, UnsendableKey
from qserve.client.error_text import message_of
from qserve.client.http import Connection, Reply
from qserve.client.stream import EventStream, NoEvent
from qserve.errors import QserveError

__all__ = ["Delta", "NoAnswer", "stream_answer"]

_CONNECT_TIMEOUT_S = 10
_OTHER_EVENT = "an event is not one of OpenAI's chat completions"


@dataclass(frozen=True)
class Delta:
    """A piece of an answer. `usage`: the token counts, in the last piece."""

    text: str = ""
    thought: str = ""
    usage: Mapping[str, Any] | None = None


class NoAnswer(QserveError):
    """The server refused, went away or broke off; the text says what to do."""


class _NotAChat(Exception):
    """The events are not those of a chat completion, or not all of them."""


def stream_answer(url: str, api_key: str, body: Mapping[str, Any]) -> Generator[Delta, None, None]:
    """The pieces of the answer as they come. Closing the generator ends the request on the server, too.

    Raises NoAnswer.
    """
    with contextlib.closing(Connection(url, api_key, timeout_s=_CONNECT_TIMEOUT_S)) as connection:
        reply = _answered(connection, url, body)
        try:
            yield from _deltas(reply)
        except (Unreachable, NoEvent, _NotAChat) as error:
            reason = _OTHER_EVENT if isinstance(error, NoEvent) and error.is_json else error
            raise NoAnswer(f"{url} broke off its answer: {reason}") from None


def _answered(connection: Connection, url: str, body: Mapping[str, Any]) -> Reply:
    try:
        connection.wait_for_ever()  # the first token of a long prompt takes as long as it takes
        reply = connection.open("POST", "/v1/chat/completions", body)
        if reply.status == 200:
            return reply
        message = Answer(reply.status, reply.headers, reply.read()).message()
    except Unreachable as error:
        raise NoAnswer(f"no server answers at {url} ({error})") from None
    except UnsendableKey:
        raise NoAnswer("the key of --api-key has characters that are not allowed in a key") from None
    if reply.status == 401:
        raise NoAnswer(f"{url} needs a key: --api-key, or QSERVE_API_KEY")
    raise NoAnswer(f"{url} answered {reply.status}: {message}")


def _deltas(reply: Reply) -> Iterator[Delta]:
    events = EventStream()
    for chunk in reply.chunks():
        yield from map(_delta, events.feed(chunk))
        if events.is_done:
            return
    yield from map(_delta, events.end())
    if not events.is_done:
        raise _NotAChat("the end is missing; the service may have stopped")


def _delta(event: Mapping[str, Any]) -> Delta:
    """The piece in one event. Raises NoAnswer for an error, _NotAChat for what is no event of a chat."""
    if event.get("error"):
        raise NoAnswer(message_of(json.dumps(event).encode()))
    try:
        choices = event.get("choices") or [{}]
        delta, usage = choices[0].get("delta") or {}, event.get("usage") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        return Delta(_text(delta.get("content")), _text(thought), {**usage} or None)
    except (AttributeError, LookupError, TypeError):
        raise _NotAChat(_OTHER_EVENT) from None


def _text(value: Any) -> str:
    if not isinstance(value, str | None):
        raise TypeError(value)
    return value or ""
