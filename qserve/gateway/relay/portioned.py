"""One request in portions of a sequence each: every portion is an exchange of its own, and waits for its own slot.

One portion waits at a time: the queue holds requests, not sequences. The answers are put together as they come
(`merged`); the first that fails ends all of them, as does the client that leaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.types import Message, Receive, Send

from qserve.gateway.bodies import Body
from qserve.gateway.relay.call import Call
from qserve.gateway.relay.cancel_scope import CancelScope
from qserve.gateway.relay.exchange import Exchange, start_of_stream
from qserve.gateway.relay.journal import StreamJournal
from qserve.gateway.relay.merged import MergedAnswer
from qserve.gateway.relay.portions import Portion
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.stream_counts import StreamCounts
from qserve.gateway.respond import send_body
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RequestRecord
from qserve.wire.errors import ApiError, internal_error

__all__ = ["PortionedExchange", "PortionedMetrics"]

# Events that wait for the client: beyond it the portions wait, and the engine's connections fill.
_MOST_UNSENT = 64


class PortionedMetrics:
    """The gateway's metrics, and others for the portions of requests: each request is counted once."""

    def __init__(self, counted: GatewayMetrics) -> None:
        self.counted = counted
        self.of_portions = GatewayMetrics()
        self.of_portions.count_retry = counted.count_retry  # type: ignore[method-assign]
        self.of_portions.continued = counted.continued


class PortionedExchange:
    """Answers a request as `Exchange` does."""

    def __init__(
        self,
        replicas: Replicas,
        call: Call,
        record: RequestRecord,
        metrics: PortionedMetrics,
        stall_timeout_s: float,
        portions: tuple[Callable[[Portion], bytes], Sequence[Portion]],
        new_journal: Callable[[], StreamJournal | None],
        resume_wait_s: float,
    ) -> None:
        """`portions`: what makes the body of each, and all of them (`portions.portions_of`). Each is continued by
        itself: `new_journal`, `resume_wait_s` as `Exchange` takes them."""
        self._replicas = replicas
        self._call = call
        self._record = record
        self._metrics, self._of_portions = metrics.counted, metrics.of_portions
        self._stall_timeout_s = stall_timeout_s
        self._body_of, self._portions = portions
        self._new_journal, self._resume_wait_s = new_journal, resume_wait_s
        self._answer = MergedAnswer()
        self._arrived: asyncio.Queue[tuple[Portion, Message] | ApiError | None] = asyncio.Queue(_MOST_UNSENT)
        self._is_streaming = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Answers the request. Raises ApiError while nothing has been sent; inside a stream the error is an event."""
        self._record.phase = "queued"
        asking = asyncio.create_task(self._ask_all())
        try:
            async with CancelScope(receive, None, self._stall_timeout_s) as end:
                await self._pass_on(send, end)
        except ApiError as error:
            if not self._is_streaming:
                raise
            self._record.error_code = error.code
            await send({"type": "http.response.body", "body": error.event(self._call.dialect)})
        finally:
            if self._is_streaming:
                self._counts.finish()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        if not self._record.error_code:
            self._record.e2e_s = self._record.elapsed_s

    async def _ask_all(self) -> None:
        """Each portion as soon as the one before it has its slot."""
        tasks: list[asyncio.Task[None]] = []
        try:
            for portion in self._portions:
                has_slot = asyncio.Event()
                tasks.append(task := asyncio.create_task(self._ask(portion, has_slot.set)))
                task.add_done_callback(lambda _, has_slot=has_slot: has_slot.set())  # type: ignore[misc]
                await has_slot.wait()
            await asyncio.gather(*tasks)
            await self._arrived.put(None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, portion: Portion, on_slot: Callable[[], None]) -> None:
        own = self._record
        record = replace(own, request_id=f"{own.request_id}-{portion.choice}", num_events=0)
        call = self._call._replace(num_sequences=1, is_more=portion is not self._portions[0], is_portion=True)
        body = Body(self._body_of(portion))
        stall_timeout_s, journal = 2 * self._stall_timeout_s, self._new_journal()
        exchange = Exchange(
            self._replicas, call, body, record, self._of_portions, stall_timeout_s, journal, self._resume_wait_s
        )

        def noted() -> None:
            if own.queue_wait_s is None:
                self._note_slot(record)
            on_slot()

        async def arrived(message: Message) -> None:
            await self._arrived.put((portion, message))

        exchange.on_slot = noted
        try:
            await exchange.run(_never, arrived)
        except ApiError as error:
            await self._arrived.put(error)
        except Exception:
            await self._arrived.put(internal_error())
            raise
        own.num_retries += record.num_retries
        own.error_code = own.error_code or record.error_code

    def _note_slot(self, first: RequestRecord) -> None:
        own = self._record
        own.phase, own.worker = "waiting", first.worker
        own.queue_wait_s, own.admitted_s = first.queue_wait_s, own.elapsed_s
        self._metrics.queue_wait.labels(first.worker).observe(first.queue_wait_s or 0.0)

    async def _pass_on(self, send: Send, end: CancelScope) -> None:
        streamed: set[Portion] = set()
        while (arrived := await self._arrived.get()) is not None and not self._answer.has_failed:
            if isinstance(arrived, ApiError):
                raise arrived
            portion, message = arrived
            if message["type"] == "http.response.start":
                if _is_stream(message):
                    streamed.add(portion)
            elif portion not in streamed:
                self._answer.add(portion, message["body"])
            elif events := self._answer.events(portion, message["body"]):
                await self._stream(send, end, events)
        if streamed:
            await self._end_stream(send, end)
        else:
            await self._send_whole(send)

    async def _end_stream(self, send: Send, end: CancelScope) -> None:
        await self._stream(send, end, self._answer.last_events(), is_last=True)
        self._record.phase = "done"
        self._metrics.count_usage(self._record, self._counts.end)
        self._metrics.count_tpot(self._record)

    async def _stream(self, send: Send, end: CancelScope, events: bytes, *, is_last: bool = False) -> None:
        end.sending_since_s = time.perf_counter()
        if not self._is_streaming:
            self._is_streaming, self._record.phase = True, "streaming"
            self._counts = StreamCounts(self._metrics, self._record)
            await send(start_of_stream(b"text/event-stream; charset=utf-8"))
        await send({"type": "http.response.body", "body": events, "more_body": not is_last})
        end.sending_since_s = 0.0
        self._counts.add(events)

    async def _send_whole(self, send: Send) -> None:
        body = self._answer.whole()
        self._record.first_byte_s = self._record.elapsed_s
        self._metrics.count_usage(self._record, body)
        await send_body(send, 200, body)
        self._record.phase = "done"


def _is_stream(start: Message) -> bool:
    headers: Any = dict(start["headers"])
    return bool(headers[b"content-type"].startswith(b"text/event-stream"))


async def _never() -> Message:
    """The client of a portion never leaves by itself."""
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never
