"""A time by which the client wants the whole answer (`x-qserve-deadline-ms`).

    before it waits    refused where the replica's pace says that the answer can't be complete in time
    while it waits     refused as soon as what is left is too short for it
    while it runs      cancelled when the time is over, which frees its slots at the worker

Whoever grants slots does the first two (`keeping`, in the coordinator where the gateway has several processes), whoever
relays the answer the third (`answered_in_time`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from starlette.types import Message, Send

from qserve.gateway.routing.pace import Expected
from qserve.gateway.telemetry.record import RequestRecord
from qserve.wire.errors import ApiError
from qserve.wire.worker_headers import DEADLINE

__all__ = ["Deadline", "answered_in_time"]

T = TypeVar("T")

_MOST_MS = 24 * 3600 * 1000
_MAX_RETRY_AFTER_S = 60
_LATER = "send it again later"


class Deadline(NamedTuple):
    """When a request is to be over.

    Attributes:
        ms: from its arrival, as the client said.
        until_s: the same by `time.perf_counter`.
        num_sequences: of the whole request, of which this may be a portion.
    """

    ms: int
    until_s: float
    num_sequences: int = 1

    @classmethod
    def of(cls, record: RequestRecord, num_sequences: int = 1) -> Deadline | None:
        """Of a request with this record; None: it has none. Raises ApiError 400 for a value that is no time."""
        given = record.deadline_ms
        if not given:
            return None
        if not given.isdigit() or len(given) > len(str(_MOST_MS)) or not 1 <= int(given) <= _MOST_MS:
            said = given[:40].decode("latin-1")
            message = f"{DEADLINE} is {said!r}; it takes whole milliseconds, once, from 1 to {_MOST_MS} (a day)"
            raise ApiError(400, message, "invalid_value", DEADLINE)
        return cls(int(given), record.started_s + int(given) / 1000, num_sequences)

    def to_json(self) -> list[Any]:
        """For another process, whose clock may be another."""
        return [self.ms, self.left_s, self.num_sequences]

    @classmethod
    def from_json(cls, document: list[Any]) -> Deadline:
        ms, left_s, num_sequences = document
        return cls(ms, time.perf_counter() + left_s, num_sequences)

    @property
    def left_s(self) -> float:
        """Seconds until then; negative behind it."""
        return self.until_s - time.perf_counter()

    async def keeping(self, expected: Expected, max_tokens: int | None, entering: Callable[[], Awaitable[T]]) -> T:
        """Waits for slots no longer than that the rest can be done in time. Raises ApiError 503 where it can't."""
        left_s = self.left_s
        if expected.total_s > left_s:
            raise self._unreachable(expected, max_tokens, left_s)
        try:
            async with asyncio.timeout(left_s - expected.service_s) as queued:
                return await entering()
        except TimeoutError:
            if not queued.expired():
                raise
            service = expected._replace(queue_s=None)
            raise self._unreachable(service, max_tokens, self.left_s, "still waits for a slot") from None

    def passed(self, *, had_slot: bool) -> ApiError:
        """The error of a request that is not over when the time is."""
        if not had_slot:
            message = f"the {self.ms} ms of {DEADLINE} passed before a worker had a slot for the request; {_LATER}"
            return ApiError(503, message, "deadline_unreachable", retry_after_s=1)
        message = (
            f"the {self.ms} ms of {DEADLINE} passed before the answer was complete, so it was cancelled; ask for fewer "
            "tokens (max_tokens), or allow more time"
        )
        return ApiError(504, message, "deadline_exceeded")

    def _unreachable(self, expected: Expected, max_tokens: int | None, left_s: float, now: str = "") -> ApiError:
        """`now`: where the request is, unless it has just come."""
        left = f"{_seconds(max(0.0, left_s))} of the {self.ms} ms of {DEADLINE} are left"
        needed = f"takes about {_seconds(expected.total_s)} ({_parts(expected, max_tokens)})" if any(expected) else ""
        what = " and ".join(filter(None, (now, needed))) or "has no slot at a worker yet"
        message = f"the request {what}, and {left}; {self._advice(expected, max_tokens, left_s)}"
        retry_after_s = max(1, min(_MAX_RETRY_AFTER_S, math.ceil(expected.queue_s or 0.0)))
        return ApiError(503, message, "deadline_unreachable", retry_after_s=retry_after_s)

    def _advice(self, expected: Expected, max_tokens: int | None, left_s: float) -> str:
        more_ms = math.ceil(self.ms + 1000 * (expected.total_s - left_s))
        enough = f"allow at least {more_ms} ms"
        if expected.service_s <= self.ms / 1000:
            return f"{_LATER}, or {enough}" if expected.queue_s else _LATER
        for_answer_s = left_s - expected.total_s + (expected.answer_s or 0.0)
        if max_tokens and expected.answer_s and for_answer_s > 0:
            most = int(max_tokens * for_answer_s / expected.answer_s)
            if most:
                return f"ask for at most {most} tokens (max_tokens), or {enough}"
        return f"shorten the prompt, or {enough}"


async def answered_in_time(
    deadline: Deadline, record: RequestRecord, answer: Callable[[Send], Awaitable[None]], send: Send
) -> ApiError | None:
    """Runs `answer` until the deadline; the error that the request ends with where it was not over by then."""
    is_complete = False

    async def noting(message: Message) -> None:
        nonlocal is_complete
        await send(message)
        is_complete = message["type"] == "http.response.body" and not message.get("more_body")

    try:
        async with asyncio.timeout(deadline.left_s) as running:
            await answer(noting)
    except TimeoutError:
        if not running.expired():
            raise
        if not is_complete:
            return deadline.passed(had_slot=record.admitted_s is not None or deadline.num_sequences == 0)
    return None


def _parts(expected: Expected, max_tokens: int | None) -> str:
    """What the time is made of, as far as is known."""
    named = (
        (expected.queue_s, "in the queue"),
        (expected.prompt_s, "to the first token"),
        (expected.answer_s, f"for max_tokens of {max_tokens}"),
    )
    return ", ".join(f"{_seconds(part_s)} {what}" for part_s, what in named if part_s)


def _seconds(value_s: float) -> str:
    return f"{value_s:.3g} s"
