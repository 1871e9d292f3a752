"""The worker's routes: one line each to the engine. Errors have OpenAI's shape; who leaves stops their request."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from qserve.engine.asgi import CLIENT_CLOSED, KeyGuard, to_response, unless_client_leaves
from qserve.engine.transformers.answer import Answer
from qserve.engine.transformers.chat import ChatAnswer
from qserve.engine.transformers.completions import CompletionAnswer
from qserve.engine.transformers.engine import Engine
from qserve.engine.transformers.memory import measured_memory
from qserve.engine.transformers.metrics import exposition
from qserve.engine.transformers.requests import chat_prompt
from qserve.wire.errors import ApiError, from_validation
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

__all__ = ["build_app"]

_log = logging.getLogger("qserve.worker")
_Request = TypeVar("_Request", bound=BaseModel)


def build_app(engine: Engine, models: tuple[str, ...], key: str) -> ASGIApp:
    """The ASGI app of a worker that serves `engine` under the names `models` to whoever knows `key`."""
    created = int(time.time())

    async def models_list(request: Request) -> Response:
        entry = {"object": "model", "created": created, "owned_by": "qserve", "max_model_len": engine.max_model_len}
        return JSONResponse({"object": "list", "data": [{"id": name, **entry} for name in models]})

    async def chat(request: Request) -> Response:
        return await _answer(request, ChatAnswer(engine, await _parse(request, ChatCompletionRequest)))

    async def completions(request: Request) -> Response:
        return await _answer(request, CompletionAnswer(engine, await _parse(request, CompletionRequest)))

    async def tokenize(request: Request) -> Response:
        return JSONResponse(_tokenize(engine, await _parse(request, TokenizeRequest)))

    async def detokenize(request: Request) -> Response:
        tokens = (await _parse(request, DetokenizeRequest)).tokens
        if max(tokens, default=0) >= engine.vocab_size:
            raise ApiError(400, f"this model's ids end at {engine.vocab_size - 1}", "invalid_value", "tokens")
        return JSONResponse({"prompt": engine.tokenizer.decode(tokens)})

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
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        exception_handlers={ApiError: _api_error, Exception: _unexpected},
    )
    return KeyGuard(app, key)


async def _parse(request: Request, kind: type[_Request]) -> _Request:
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise from_validation(error) from None


async def _answer(request: Request, answer: Answer) -> Response:
    if (json.loads(await request.body())).get("stream"):
        return StreamingResponse(_guarded(answer.events()), media_type="text/event-stream")
    whole = await unless_client_leaves(request, answer.whole())
    return Response(status_code=CLIENT_CLOSED) if whole is None else JSONResponse(whole)


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


def _tokenize(engine: Engine, request: TokenizeRequest) -> dict[str, Any]:
    if request.messages is not None:
        ids = chat_prompt(
            engine,
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            template_kwargs=request.chat_template_kwargs,
        )
    else:
        ids = engine.tokenizer.encode(request.prompt, add_special_tokens=request.add_special_tokens)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": engine.max_model_len, "tokens": ids}
    if request.return_token_strs:
        answer["token_strs"] = [engine.token_text.label(token_id) for token_id in ids]
    return answer


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return to_response(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.exception("a request failed", exc_info=error)
    return to_response(ApiError(500, "the worker failed on this request; its log tells why", "internal_error"))
