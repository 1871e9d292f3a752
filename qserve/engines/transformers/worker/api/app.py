"""The worker's routes: one line each to the engine. Errors have OpenAI's shape; who leaves stops their request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from qserve.engines.transformers.worker.api.answer import Answer, encoded
from qserve.engines.transformers.worker.api.asker import Asker
from qserve.engines.transformers.worker.api.chat import ChatAnswer
from qserve.engines.transformers.worker.api.completions import CompletionAnswer
from qserve.engines.transformers.worker.api.memory import measured_memory
from qserve.engines.transformers.worker.api.translated import TranslatedAnswer
from qserve.engines.transformers.worker.engine import Engine
from qserve.engines.transformers.worker.prompts.read_body import AnswerFields, ReadBody
from qserve.engines.transformers.worker.prompts.workers import AnswerKind, PromptWorkers
from qserve.model.failures import EngineError
from qserve.wire.dialects.messages_answer import MessagesAnswer
from qserve.wire.dialects.responses_answer import ResponsesAnswer
from qserve.wire.errors import ApiError, Dialect
from qserve.worker.app import UNEXPECTED, as_api_error, worker_app
from qserve.worker.asgi import CLIENT_CLOSED, body_of, unless_client_leaves

__all__ = ["build_app"]

_Made = TypeVar("_Made")
_log = logging.getLogger("qserve.worker")


def build_app(engine: Engine, prompts: PromptWorkers, models: tuple[str, ...], key: str) -> ASGIApp:
    """The ASGI app of a worker that serves `engine` under the names `models` to whoever knows `key`.

    Bodies are read by `prompts`, in other processes: nothing that a client sends holds this event loop.
    """

    async def chat(request: Request) -> Response:
        asker, data = await Asker.read(request)
        body = await prompts.chat("chat", data)
        return await _answer(request, asker, await _made(request, body, ChatAnswer.to(engine, body, asker)))

    async def messages(request: Request) -> Response:
        asker, data = await Asker.read(request)
        body = await prompts.chat("messages", data)
        making = TranslatedAnswer.to(engine, body, MessagesAnswer, asker)
        return await _answer(request, asker, await _made(request, body, making), dialect=Dialect.ANTHROPIC)

    async def responses(request: Request) -> Response:
        asker, data = await Asker.read(request)
        body = await prompts.chat("responses", data)
        making = TranslatedAnswer.to(engine, body, ResponsesAnswer, asker)
        return await _answer(request, asker, await _made(request, body, making), dialect=Dialect.RESPONSES)

    def about_tokens(kind: AnswerKind) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return Response(await prompts.answer(kind, await body_of(request)), media_type="application/json")

        return answer

    async def completions(request: Request) -> Response:
        asker, data = await Asker.read(request)
        body = await prompts.completion(data)
        return await _answer(request, asker, await _made(request, body, CompletionAnswer.to(engine, body, asker)))

    async def limits(request: Request) -> Response:
        return JSONResponse(asdict(engine.limits))

    return worker_app(
        [
            Route("/v1/qserve/limits", limits),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/messages", messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", about_tokens("count_tokens"), methods=["POST"]),
            Route("/v1/responses", responses, methods=["POST"]),
            Route("/v1/responses/input_tokens", about_tokens("input_tokens"), methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", about_tokens("tokenize"), methods=["POST"]),
            Route("/detokenize", about_tokens("detokenize"), methods=["POST"]),
        ],
        models,
        key,
        card=lambda: {"max_model_len": engine.max_model_len},
        metrics=lambda: _exposition(engine),
        # In a thread: the kernel takes a while to add up a large process, and streams must not wait for it.
        memory=lambda: asyncio.to_thread(measured_memory, engine),
        dialect_of=lambda path: Dialect.ANTHROPIC if path.startswith("/v1/messages") else Dialect.OPENAI,
    )


async def _made(request: Request, body: ReadBody[Any], making: Coroutine[Any, Any, _Made]) -> _Made | None:
    """What is made ready; None where its client left meanwhile: a structure may take a second."""
    return await making if body.grammar is None else await unless_client_leaves(request, making)


async def _answer(
    request: Request,
    asker: Asker,
    made: tuple[AnswerFields, Answer | TranslatedAnswer] | None,
    dialect: Dialect = Dialect.OPENAI,
) -> Response:
    if made is None:
        return Response(status_code=CLIENT_CLOSED)
    fields, answer = made
    if fields.stream:
        events = asker.journal.before(answer.events()) if asker.keeps_journal else answer.events()
        return StreamingResponse(_guarded(events, dialect), media_type="text/event-stream")
    whole = await unless_client_leaves(request, answer.whole())
    if whole is None:
        return Response(status_code=CLIENT_CLOSED)
    parts = await encoded(whole)
    headers = {"content-length": str(sum(map(len, parts)))}
    return StreamingResponse(_each(parts), headers=headers, media_type="application/json")


async def _each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def _guarded(events: AsyncGenerator[bytes], dialect: Dialect) -> AsyncIterator[bytes]:
    """The status line is out: an error becomes the last event."""
    try:
        async with aclosing(events) as closing:
            async for item in closing:
                yield item
    except (ApiError, EngineError) as error:
        yield as_api_error(error).event(dialect)
    except Exception:
        _log.exception("a stream failed")
        yield UNEXPECTED.event(dialect)


class _EngineCollector(Collector):
    """Reads the engine's own books at the time of the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> list[Metric]:
        """The metric families."""
        engine, load = self._engine, self._engine.batcher.load()
        return [
            CounterMetricFamily("qserve_worker_prompt_tokens", "Prompt tokens taken in", engine.num_prompt_tokens),
            CounterMetricFamily(
                "qserve_worker_cached_prompt_tokens", "Of them, those that were in the KV cache", load.num_shared_tokens
            ),
            CounterMetricFamily("qserve_worker_generated_tokens", "Tokens generated", engine.num_generated_tokens),
            GaugeMetricFamily("qserve_worker_sequences_running", "Sequences that generate", load.num_running),
            GaugeMetricFamily("qserve_worker_sequences_waiting", "Sequences that wait", load.num_waiting),
            GaugeMetricFamily("qserve_worker_kv_cache_usage_ratio", "Share of the KV pool in use", load.kv_cache_usage),
        ]


def _exposition(engine: Engine) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry()
    registry.register(_EngineCollector(engine))
    return generate_latest(registry)
