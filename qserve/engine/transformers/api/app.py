"""The worker's routes: one line each to the engine. Errors have OpenAI's shape; who leaves stops their request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from qserve.engine.asgi import CLIENT_CLOSED, KeyGuard, to_response, unless_client_leaves
from qserve.engine.prompts.lanes import PromptLanes
from qserve.engine.transformers.api.answer import Answer
from qserve.engine.transformers.api.chat import ChatAnswer
from qserve.engine.transformers.api.completions import CompletionAnswer
from qserve.engine.transformers.api.memory import measured_memory
from qserve.engine.transformers.api.metrics import exposition
from qserve.engine.transformers.engine import Engine
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, SamplingFields

__all__ = ["build_app"]

_log = logging.getLogger("qserve.worker")


def build_app(engine: Engine, prompts: PromptLanes, models: tuple[str, ...], key: str) -> ASGIApp:
    """The ASGI app of a worker that serves `engine` under the names `models` to whoever knows `key`.

    Bodies are read by `prompts`, in other processes: nothing that a client sends holds this event loop.
    """
    created = int(time.time())

    async def models_list(request: Request) -> Response:
        entry = {"object": "model", "created": created, "owned_by": "qserve", "max_model_len": engine.max_model_len}
        return JSONResponse({"object": "list", "data": [{"id": name, **entry} for name in models]})

    async def chat(request: Request) -> Response:
        body = await prompts.read("chat", await request.body())
        fields = ChatCompletionRequest.model_validate_json(body.request)
        return await _answer(request, fields, ChatAnswer(engine, fields, body.prompts[0].tolist()))

    async def completions(request: Request) -> Response:
        body = await prompts.read("completion", await request.body())
        fields = CompletionRequest.model_validate_json(body.request)
        ids: list[list[int]] = []
        for prompt in body.prompts:
            ids.append(prompt.tolist())
            await asyncio.sleep(0)  # millions of ids take a while; streams go on in between
        return await _answer(request, fields, CompletionAnswer(engine, fields, ids))

    async def tokenize(request: Request) -> Response:
        body = await prompts.read("tokenize", await request.body())
        return Response(body.answer, media_type="application/json")

    async def detokenize(request: Request) -> Response:
        body = await prompts.read("detokenize", await request.body())
        return Response(body.answer, media_type="application/json")

    async def limits(request: Request) -> Response:
        return JSONResponse(asdict(engine.limits))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response(exposition(engine), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def memory(request: Request) -> Response:
        # In a thread: the kernel takes a while to add up a large process, and streams must not wait for it.
        return JSONResponse(await asyncio.to_thread(measured_memory, engine))

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models_list),
            Route("/v1/qserve/memory", memory),
            Route("/v1/qserve/limits", limits),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        exception_handlers={ApiError: _api_error, Exception: _unexpected},
    )
    return KeyGuard(app, key)


async def _answer(request: Request, fields: SamplingFields, answer: Answer) -> Response:
    if fields.stream:
        return StreamingResponse(_guarded(answer.events()), media_type="text/event-stream")
    whole = await unless_client_leaves(request, answer.whole())
    if whole is None:
        return Response(status_code=CLIENT_CLOSED)
    return Response(msgspec.json.encode(whole), media_type="application/json")  # ten times as fast as json's


async def _guarded(events: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    """The status line is out: an error becomes the last event."""
    try:
        async with aclosing(events) as closing:
            async for item in closing:
                yield item
    except ApiError as error:
        yield error.event()
    except Exception:
        _log.exception("a stream failed")
        yield ApiError(500, "the worker failed on this request; its log tells why", "internal_error").event()


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return to_response(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.exception("a request failed", exc_info=error)
    return to_response(ApiError(500, "the worker failed on this request; its log tells why", "internal_error"))
