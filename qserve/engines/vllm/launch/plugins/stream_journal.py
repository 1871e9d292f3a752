"""Has vLLM's server write what another one needs to continue a stream, and continue one (--middleware).

As `wire.worker_headers.JOURNAL` says: before its events the stream has lines with what they were made of. The first has
when the answer began and what its ids are drawn from; each further one the outputs of the engine that the server took
since, by their tokens. A server that continues an answer generates it again by the same tokens (`replayed_tokens`) and
takes them in the same portions, so each of its events is what it was; a token that differs is an error.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from copy import copy
from functools import partial
from hashlib import blake2b
from typing import Any

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import async_llm, parallel_sampling
from vllm.v1.engine.exceptions import EngineDeadError

from qserve.engines.vllm.launch.plugins.replayed_tokens import REPLAYED
from qserve.engines.vllm.launch.plugins.taken_outputs import Portion, TakenAgain, tokens_by_choice

__all__ = ["ContinuedStreams"]

_HEADER = b"x-qserve-journal"
_LINE, _INEXACT = b":j", b":j~"
_CREATED = re.compile(rb'"created(?:_at)?": ?(\d+)')

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
_Receive = Callable[[], Awaitable[_Message]]

_answer: ContextVar[_Answer | None] = ContextVar("answer that is noted", default=None)


class ContinuedStreams:
    """An ASGI app around the server's."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or _HEADER not in headers:
            await self._app(scope, receive, send)
            return
        answer = _Answer()
        if num_bytes := int(headers[_HEADER]):
            body = await _whole(receive)
            body, lines = body[:-num_bytes], body[-num_bytes:]
            answer = _Answer.read(lines)
            headers[b"content-length"] = b"%d" % len(body)
            scope = {**scope, "headers": list(headers.items())}
            receive = _Received(body, receive)
        token = _answer.set(answer)
        try:
            await self._app(scope, receive, answer.noting(send, scope))
        finally:
            _answer.reset(token)


class _Answer:
    """One that is written, from its beginning or, with what the journal of another server says of it, again.

    Attributes:
        is_again: it has such a journal.
        is_dead: its engine is. The connection ends then as if the server itself had died.
        is_exact: whether it comes out again byte for byte; figures of log-probabilities round otherwise in a batch.
    """

    def __init__(self, ids_from: str = "", created: bytes = b"", taken: Sequence[tuple[str, Portion]] = ()) -> None:
        """`taken`: what the other server took, each with the id of the engine's request."""
        self._ids_from = ids_from or secrets.token_hex(8)
        self._num_ids = 0
        self._created = created
        self._taken = list(taken)
        self._next = deque(request_id for request_id, _ in taken)
        self._turn = asyncio.Condition()
        self._is_stream = False
        self._unwritten: list[tuple[str, Portion]] = []
        self.is_again = bool(ids_from)
        self._has_begun = self.is_again
        self.is_dead = False
        self.is_exact = True

    @classmethod
    def read(cls, lines: bytes) -> _Answer:
        """What a server wrote."""
        head, *others = [json.loads(line.removeprefix(_INEXACT).removeprefix(_LINE)) for line in lines.splitlines()]
        taken = [(request_id, Portion(*portion)) for line in others for request_id, portion in line]
        return cls(head["ids_from"], str(head["created"]).encode(), taken)

    def next_id(self) -> uuid.UUID:
        """The same ones again in the same order."""
        self._num_ids += 1
        return uuid.UUID(
            bytes=blake2b(f"{self._ids_from}:{self._num_ids}".encode(), digest_size=16).digest(), version=4
        )

    def bound(self, params: SamplingParams, request_id: str) -> SamplingParams:
        """With the tokens that are known of each choice."""
        choices = tokens_by_choice(self._portions(request_id), params.n)
        if not any(choices):
            return params
        params = copy(params)
        params.extra_args = {**(params.extra_args or {}), REPLAYED: choices}
        return params

    async def outputs(self, request_id: str, outputs: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
        """Those of one request as the server takes them, noted: of several prompts one at a time, in the same order."""
        again = TakenAgain(self._portions(request_id))
        async with aclosing(outputs), aclosing(again.of(outputs)) as taken:
            try:
                async for output, is_new in taken:
                    async with self._turn:
                        await self._turn.wait_for(partial(self._may_take, request_id, is_new))
                        if is_new:
                            self._unwritten.append((request_id, Portion.of(output)))
                        else:
                            self._next.popleft()
                        try:
                            yield output  # and its events are written before it goes on here
                        finally:
                            self._turn.notify_all()
            except EngineDeadError:
                self.is_dead = True
                raise

    def _may_take(self, request_id: str, is_new: bool) -> bool:
        return not self._next if is_new else self._next[0] == request_id

    def _portions(self, request_id: str) -> list[Portion]:
        return [portion for of, portion in self._taken if of == request_id]

    def noting(self, send: _Send, scope: Any) -> _Send:
        """`send` with the lines before what was made of them."""

        async def noted(message: _Message) -> None:
            if message["type"] == "http.response.start":
                self.is_dead |= _tells_of_death(message, scope)
                self._is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            elif self.is_dead:  # the status alone, or events without their end, can't be taken for an answer
                raise ConnectionResetError("the engine is dead: another one answers")
            elif self._is_stream and (body := message.get("body")):
                message = {**message, "body": b"".join(self._lines(body)) + self._as_it_began(body)}
            await send(message)

        return noted

    def _lines(self, events: bytes) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            found = _CREATED.search(events)
            self._created = found[1] if found else b"0"
            head = {"ids_from": self._ids_from, "created": int(self._created)}
            yield _line(head, _LINE if self.is_exact else _INEXACT)
        if self._unwritten:
            yield _line(self._unwritten, _LINE)
            self._unwritten = []

    def _as_it_began(self, events: bytes) -> bytes:
        if not self.is_again or not int(self._created):
            return events
        return _CREATED.sub(lambda found: found[0].removesuffix(found[1]) + self._created, events)


def _tells_of_death(message: _Message, scope: Any) -> bool:
    """Whether it begins the error that vLLM answers once its engine has died."""
    return message.get("status", 0) >= 500 and bool(scope["app"].state.engine_client.errored)


class _Received:
    """`receive` of a body that has been read."""

    def __init__(self, body: bytes, later: _Receive) -> None:
        self._body: bytes | None = body
        self._later = later

    async def __call__(self) -> _Message:
        if self._body is None:
            return await self._later()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _whole(receive: _Receive) -> bytes:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _line(content: object, begin: bytes) -> bytes:
    return begin + json.dumps(content, separators=(",", ":")).encode() + b"\n"


# What of vLLM is changed: requests of an answer that is noted, and nothing of others.

_generate = async_llm.AsyncLLM.generate
_new_collector = async_llm.RequestOutputCollector
_child_params = parallel_sampling.ParentRequest._get_child_sampling_params
_new_id = uuid.uuid4


def _noted_generate(
    self: Any, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **named: Any
) -> AsyncGenerator[Any]:
    answer, sampling_params = _answer.get(), _by_client(sampling_params)
    is_stream = getattr(sampling_params, "output_kind", None) == RequestOutputKind.DELTA
    if answer is None or not is_stream or self.vllm_config.speculative_config is not None:
        outputs: AsyncGenerator[Any] = _generate(self, prompt, sampling_params, request_id, *args, **named)
        return outputs
    answer.is_exact &= sampling_params.logprobs is None
    bound = answer.bound(sampling_params, request_id)
    return answer.outputs(request_id, _generate(self, prompt, bound, request_id, *args, **named))


def _by_client(params: Any) -> Any:
    """Without known tokens: a client that names some (`vllm_xargs`) would reach into the engine."""
    if REPLAYED not in (getattr(params, "extra_args", None) or {}):
        return params
    params = copy(params)
    params.extra_args = {name: value for name, value in params.extra_args.items() if name != REPLAYED}
    return params


def _collector(output_kind: Any, request_id: str) -> Any:
    answer = _answer.get()
    if answer is None or not answer.is_again:
        return _new_collector(output_kind, request_id)
    return _OneByOne(output_kind, request_id)


class _OneByOne(_new_collector):  # type: ignore[misc, valid-type]  # vllm is not read by mypy
    """vLLM's own puts those together that come while its server is busy."""

    def __init__(self, output_kind: Any, request_id: str) -> None:
        super().__init__(output_kind, request_id)
        self._outputs: list[Any] = []

    def put(self, output: Any) -> None:
        self._outputs.append(output)
        self.ready.set()

    def get_nowait(self) -> Any:
        if not self._outputs:
            return None
        output = self._outputs.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    async def get(self) -> Any:
        while (output := self.get_nowait()) is None:
            self.ready.clear()
            await self.ready.wait()
        return output


def _own_tokens(self: Any, index: int) -> Any:
    """Each choice is a request of the engine's own."""
    params = _child_params(self, index)
    choices = (params.extra_args or {}).get(REPLAYED)
    if not choices:
        return params
    params = copy(params)
    params.extra_args = {**params.extra_args, REPLAYED: [self.sampling_params.extra_args[REPLAYED][index]]}
    return params


def _id_of_answer() -> uuid.UUID:
    answer = _answer.get()
    return _new_id() if answer is None else answer.next_id()


async_llm.AsyncLLM.generate = _noted_generate
async_llm.RequestOutputCollector = _collector
parallel_sampling.ParentRequest._get_child_sampling_params = _own_tokens
uuid.uuid4 = _id_of_answer
