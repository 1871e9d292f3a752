"""One generation, from the client's bytes to the worker's bytes and back.

    validate once → choose a replica → wait for a slot → forward the same bytes → relay what comes

Two things end it early: the client disconnects, or the supervisor takes the worker out of service. Either closes the
connection to the worker and so cancels the generation. If the client has received no byte by then, the request is
retried at another replica, if there is one. A stream that has begun is continued there, or by the next life of the only
worker, if the worker wrote what that takes (`journal`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from starlette.types import Message, Receive, Send

from qserve.gateway.bodies import Body
from qserve.gateway.relay.attempts import Attempts
from qserve.gateway.relay.call import Call
from qserve.gateway.relay.cancel_scope import CancelScope, WorkerGivenUp
from qserve.gateway.relay.client import ConnectionBroke, Reply, Unreachable
from qserve.gateway.relay.deadline import answered_in_time
from qserve.gateway.relay.events import EventCutter
from qserve.gateway.relay.journal import OtherAnswer, StreamJournal
from qserve.gateway.relay.keep_alive import LOADED, KeepAlive
from qserve.gateway.relay.replicas import Replicas, RoutedRequest
from qserve.gateway.relay.stream_counts import StreamCounts
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.respond import JSON, send_body
from qserve.gateway.routing.router import RequestTokens
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RequestRecord
from qserve.wire.errors import ApiError
from qserve.wire.worker_headers import CACHE_SALT, CLIENT, JOURNAL, PRIORITY
from qserve.worker.wires import wire_named

__all__ = ["Exchange", "start_of_stream"]

_EVENT_STREAM = b"text/event-stream"
_STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Exchange:
    """One request that a worker answers, with the body that goes with it."""

    def __init__(
        self,
        replicas: Replicas,
        call: Call,
        body: Body,
        record: RequestRecord,
        metrics: GatewayMetrics,
        stall_timeout_s: float,
        journal: StreamJournal | None = None,
        resume_wait_s: float = 0.0,
    ) -> None:
        """`journal`: where the worker's notes on a stream are kept, which may be continued within `resume_wait_s`."""
        self._replicas = replicas
        self._call = call
        self._body = body
        self._record = record
        self._metrics = metrics
        self._stall_timeout_s = stall_timeout_s
        self._journal = journal
        self._resume_wait_s = resume_wait_s
        self._counts: StreamCounts | None = None
        self._streaming = self._is_open = False
        self._is_awaiting = False
        self._queued_s = 0.0
        self._upstream: Upstream | None = None
        self.on_slot: Callable[[], None] = lambda: None
        """Called when it has its slots."""
        self.on_queued: Callable[[], None] = lambda: None
        """Called when it begins to wait for them."""

    async def run(self, receive: Receive, send: Send) -> None:
        """Answers the request. Raises ApiError while nothing has been sent; inside a stream the error is an event."""
        if (deadline := self._call.deadline) is None:
            await self._run(receive, send)
        elif late := await answered_in_time(deadline, self._record, partial(self._run, receive), send):
            async with CancelScope(receive, None, self._stall_timeout_s) as end:
                end.sending_since_s = time.perf_counter()
                await self._fail(late, send)

    async def _run(self, receive: Receive, send: Send) -> None:
        call = self._call
        routed = self._replicas.routed(
            call.path,
            self._body.data,
            self._record.model,
            call.num_sequences,
            call.max_tokens,
            call.cache_salt or "",
            call.client,
            is_more=call.is_more,
        )
        if call.deadline is not None or call.is_urgent or call.is_portion:
            routed = routed._replace(deadline=call.deadline, is_urgent=call.is_urgent, is_portion=call.is_portion)
        attempts = Attempts(self._replicas, routed, self._resume_wait_s)
        try:
            while True:
                try:
                    await self._ask(routed, attempts, receive, send)
                    return
                except ApiError as error:
                    if (end := await self._end_of(error, attempts)) is not None:
                        await self._fail(end, send)
                        return
                    if self._upstream is not None:
                        self._record.num_retries += 1
                        self._metrics.count_retry(self._record.worker, error.code)
        finally:
            if self._journal is not None:
                self._journal.close()

    async def _end_of(self, error: ApiError, attempts: Attempts) -> ApiError | None:
        """What the request ends with after this error of an attempt; None: another one is made."""
        if self._upstream is None:  # it had no slot
            return await attempts.failed(error, None, has_begun=self._streaming, may_wait=True)
        is_kept = self._journal is not None and self._journal.can_continue
        may_wait = is_kept if self._streaming else self._is_noted
        return await attempts.failed(error, self._life, has_begun=bool(self._record.status), may_wait=may_wait)

    def _num_generated(self) -> int:
        num_tokens = self._record.num_generated_tokens
        return self._record.num_events if num_tokens is None else num_tokens

    async def _ask(self, routed: RoutedRequest, attempts: Attempts, receive: Receive, send: Send) -> None:
        """One attempt."""
        record, self._upstream = self._record, None
        background = self._is_background
        self._begin_to_wait()
        try:
            async with (
                CancelScope(receive, None, self._stall_timeout_s) as self._end,
                self._comments(send) as self._waits,
            ):
                await attempts.until_ready()
                async with self._replicas.slot(routed, attempts.tried, background=background) as self._slot:
                    self._has_slot(self._slot.upstream)
                    await self._forward(send)
                    tokens = RequestTokens(record.num_prompt_tokens or 0, self._num_generated())
                    self._slot.is_answered(tokens, record.first_token_s)
        except WorkerGivenUp:
            raise _died(self._slot.upstream.status.detail) from None
        if self._call.num_sequences and not record.error_code:
            record.e2e_s = time.perf_counter() - record.started_s

    def _comments(self, send: Send) -> KeepAlive:
        """On a stream that waits: one that has begun, or one that begins with them."""
        if self._streaming or not self._call.opens_early:
            return KeepAlive(send if self._streaming else None)
        return KeepAlive(partial(self._open_and_send, send), LOADED)

    async def _open_and_send(self, send: Send, message: Message) -> None:
        await self._open(send, _EVENT_STREAM)
        await send(message)

    async def _open(self, send: Send, content_type: bytes) -> None:
        """Sends the status line, once."""
        if not self._is_open:
            self._is_open = True
            await send(start_of_stream(content_type))

    def _begin_to_wait(self) -> None:
        if self._call.num_sequences:
            self._record.phase = "queued"
            self._queued_s = self._queued_s or time.perf_counter()  # also after attempts at other replicas
            self.on_queued()

    def _has_slot(self, upstream: Upstream) -> None:
        self._upstream, record = upstream, self._record
        self._life, self._client = upstream.life, upstream.client
        record.worker = upstream.name
        self._end.watch(upstream.down)
        if not self._streaming:
            self._waits.end()
        if self._call.num_sequences and not self._streaming:
            now_s = time.perf_counter()
            record.queue_wait_s, record.admitted_s = now_s - self._queued_s, now_s - record.started_s
            self._metrics.queue_wait.labels(upstream.name).observe(record.queue_wait_s)
        self.on_slot()

    async def _fail(self, error: ApiError, send: Send) -> None:
        if not self._is_open:
            raise error
        self._record.error_code = error.code
        await send({"type": "http.response.body", "body": error.event(self._call.dialect)})

    async def _forward(self, send: Send) -> None:
        self._record.phase = "waiting"
        call, record = self._call, self._record
        body, journal_bytes = self._body_to_send()
        headers = (*record.trace_headers, *self._worker_headers(journal_bytes))
        self._await_worker(True)
        try:
            async with self._client.request(call.method, call.path, record.request_id, body, headers) as reply:
                if reply.content_type == _EVENT_STREAM and reply.status == 200:
                    await self._relay_stream(reply, send)
                elif self._streaming:
                    raise _died(f"and another one answered {reply.status} where it should have continued")
                else:
                    await self._relay_whole(reply, send)
        except Unreachable as error:
            message = f"the worker can't be reached: {error}"
            raise ApiError(503, message, "worker_unreachable", retry_after_s=2) from error
        except ConnectionBroke as error:
            raise _died(str(error)) from error
        finally:
            self._await_worker(False)

    def _body_to_send(self) -> tuple[Body, int]:
        """And of how many bytes of journal it has at its end.

        The body is needed for a retry until the client has received a byte, and for a stream to its end.
        """
        if self._streaming and self._journal is not None:
            data, journal_bytes = self._journal.begin_again()
            return Body(data), journal_bytes
        return self._body if self._replicas.is_single and not self._is_noted else Body(self._body.data), 0

    @property
    def _is_noted(self) -> bool:
        """Whether the worker is asked for what a stream needs to be continued."""
        continues = wire_named(self._slot.upstream.status.facts.wire).continues_streams
        return self._journal is not None and continues and self._call.num_sequences > 0

    def _worker_headers(self, journal_bytes: int) -> Iterator[tuple[str, str]]:
        """What a worker is told of the client, if its wire format takes that; qserve's own does."""
        if self._is_noted:
            yield JOURNAL, str(journal_bytes)
        if not wire_named(self._slot.upstream.status.facts.wire).takes_client_headers:
            return
        yield CLIENT, self._call.client
        if self._is_background:
            yield PRIORITY, "background"
        elif self._call.is_urgent:
            yield PRIORITY, "high"
        if self._call.cache_salt is not None:
            yield CACHE_SALT, self._call.cache_salt

    @property
    def _is_background(self) -> bool:
        return self._record.is_background or self._call.is_bulk

    def _await_worker(self, is_awaiting: bool) -> None:
        """Counts requests that wait for the worker (not for a slow client), by which the supervisor detects a hang."""
        self._slot.upstream.load.num_awaited += is_awaiting - self._is_awaiting
        self._is_awaiting = is_awaiting

    async def _relay_whole(self, reply: Reply, send: Send) -> None:
        self._record.first_byte_s = time.perf_counter() - self._record.started_s
        body = await reply.read()
        self._await_worker(False)
        self._slot.upstream.load.num_pieces += 1
        status = reply.status
        if status in (401, 403) or reply.content_type != JSON:
            # The internal key was refused, or it is not an answer of the API: meaningless to the client.
            kind = reply.content_type.decode(errors="replace") or "no content type"
            raise ApiError(502, f"the worker answered {status} with {kind}", "worker_error")
        if status >= 400:
            self._refuse_in_our_words(status, body, reply)
            if self._is_open:
                raise ApiError.from_body(status, body)
            self._record.error_code = f"worker_{status}"
        else:
            self._metrics.count_usage(self._record, body)
            body = self._rewritten(body)
        await send_body(send, status, body, headers=_passed_on(reply))
        self._record.phase = "done"

    def _refuse_in_our_words(self, status: int, body: bytes, reply: Reply) -> None:
        """Raises a worker's error as an ApiError, unless its wire format has errors of the API's shape already."""
        facts = self._slot.upstream.status.facts
        wire = wire_named(facts.wire)
        if wire.speaks_our_errors:
            return
        limit = None if self._call.max_tokens == 0 else facts.max_model_len
        error = wire.error(status, body, limit)
        if error is None:
            raise ApiError(502, f"the worker answered {status} with {body[:200]!r}", "worker_error")
        wait = reply.headers.get(b"retry-after", b"")
        error.retry_after_s = int(wait) if wait.isdigit() else None
        raise error

    async def _relay_stream(self, reply: Reply, send: Send) -> None:
        """Relays whole events as they arrive, and counts them after they were sent."""
        cutter, journal, are_first = EventCutter(), self._journal, True
        counts = self._counts = self._counts or StreamCounts(self._metrics, self._record)
        try:
            while chunk := await self._next(reply):
                events = cutter.feed(chunk)
                if events and are_first:
                    events, are_first = self._rewritten(events), False
                if journal is not None:
                    events = journal.read(events)
                if events:
                    counts.add(await self._pass_on(events, reply, send))
            if journal is not None:
                journal.check_end()
        except OtherAnswer as error:
            raise ApiError(502, f"the worker died while it answered, and {error}", "not_continued") from None
        finally:
            counts.finish()
        if not self._streaming:
            await self._start_stream(reply, send)
        await send({"type": "http.response.body", "body": cutter.rest()})
        self._record.phase = "done"
        if error_code := wire_named(self._slot.upstream.status.facts.wire).stream_error(counts.end):
            self._record.error_code = error_code
        self._metrics.count_usage(self._record, counts.end)
        self._metrics.count_tpot(self._record)

    async def _pass_on(self, events: bytes, reply: Reply, send: Send) -> bytes:
        self._end.sending_since_s = time.perf_counter()
        if not self._streaming:
            await self._start_stream(reply, send)
        elif self._waits.end():
            self._record.phase = "streaming"
            self._slot.has_begun()
            self._metrics.continued.labels(self._record.model).inc()
        await send({"type": "http.response.body", "body": events, "more_body": True})
        self._end.sending_since_s = 0.0
        if self._journal is not None:
            self._journal.sent(events)
        return events

    def _rewritten(self, answer: bytes) -> bytes:
        return answer if self._call.rewrite is None else self._call.rewrite(answer)

    async def _next(self, reply: Reply) -> bytes:
        self._await_worker(True)
        chunk = await reply.read_some()
        self._await_worker(False)
        self._slot.upstream.load.num_pieces += 1
        return chunk

    async def _start_stream(self, reply: Reply, send: Send) -> None:
        """Delays the status line until the first event, so that an earlier error has its own status."""
        self._slot.has_begun()
        if self._journal is not None:
            self._journal.keep(self._body.data)
        self._body.drop()
        await self._open(send, reply.headers[b"content-type"])
        self._streaming = True
        self._record.phase = "streaming"


def start_of_stream(content_type: bytes) -> Message:
    """The status line and headers of a stream."""
    headers = [(b"content-type", content_type), *_STREAM_HEADERS]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _died(why: str) -> ApiError:
    message = f"the worker died while it answered ({why}); send the request again when GET /ready answers 200"
    return ApiError(502, message, "worker_died", retry_after_s=5)


def _passed_on(reply: Reply) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name in (b"retry-after", b"x-qserve-meta") if (value := reply.headers.get(name))]
