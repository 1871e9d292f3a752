"""A small server with vLLM's manners: a document of its own, vLLM's error shape, named events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_OPEN = {"type": "object", "additionalProperties": True}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": {"type": "string"}},
    "required": ["role", "content"],
}
_REQUEST = {
    "type": "object",
    "additionalProperties": True,
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
        "input": {"type": "string"},
        "prompt": {"type": "string"},
        "max_tokens": {"type": "integer"},
        "n": {"type": "integer"},
        "seed": {"type": "integer"},
        "stream": {"type": "boolean"},
        "tools": {"type": "array", "items": _OPEN},
        "response_format": _OPEN,
    },
}
_REF = {"$ref": "#/components/schemas/Request"}
_SERVED = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize")
DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {path: {"post": {"requestBody": {"content": {"application/json": {"schema": _REF}}}}} for path in _SERVED},
    "components": {"schemas": {"Request": _REQUEST, "Message": _MESSAGE}},
}
EVENTS = {
    "/v1/messages": [
        'event: message_start\ndata: {"message":{"usage":{"input_tokens":5,"output_tokens":0}}}\n\n',
        'event: content_block_start\ndata: {"type":"content_block_start","index":0}\n\n',
        "event: ping\ndata: {}\n\n",
        'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"événement: \\n\\ndata: 4"}}\n\n',
        'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"2"}}\n\n',
        'event: message_delta\ndata: {"usage":{"input_tokens":5,"output_tokens":3}}\n\n',
        'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ],
    "/v1/responses": [
        'event: response.created\ndata: {"response":{"usage":null}}\n\n',
        'event: response.output_item.added\ndata: {"item":{}}\n\n',
        'event: response.output_text.delta\ndata: {"delta":"42"}\n\n',
        'event: response.completed\ndata: {"response":{"tools":[{"parameters":{"usage":{"type":"object"}}}],'
        '"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":1},"output_tokens":3}}}\n\n',
    ],
}


class SmallEngine:
    """`asked` holds (path, body, request id) of every request; a `seed` from 100 on is the status to answer with.

    `refusal` is the message of such an answer.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.asked: list[tuple[str, bytes, str]] = []
        self.num_cancelled = 0
        self.refusal = "no good"
        self.go_on = threading.Event()
        self.go_on.set()

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((request.url.path, body, request.headers.get("x-request-id", "")))
        value: dict[str, Any] = json.loads(body) if body else {}
        if value.get("seed", 0) >= 100:
            error = {"message": self.refusal, "type": "BadRequestError", "param": "body.seed", "code": value["seed"]}
            return JSONResponse({"error": error}, value["seed"], {"retry-after": "7"})
        if value.get("stream"):
            return StreamingResponse(self._stream(request.url.path, value), media_type="text/event-stream")
        while not self.go_on.is_set():
            if await request.is_disconnected():
                self.num_cancelled += 1
            await asyncio.sleep(0.01)
        return JSONResponse({"usage": {"prompt_tokens": 5, "completion_tokens": 3}, "path": request.url.path})

    async def _stream(self, path: str, value: dict[str, Any]) -> AsyncIterator[bytes]:
        """The events, in pieces of `max_tokens` bytes; with a `seed` the stream breaks off before its end."""
        data = "".join(EVENTS[path]).encode()
        size = value.get("max_tokens") or len(data)
        for at in range(0, len(data) - (20 if value.get("seed") else 0), size):
            yield data[at : at + size]
            await asyncio.sleep(0)
        if value.get("seed"):
            raise ConnectionAbortedError("broke off, as it was told to")

    async def _metrics(self, request: Request) -> Response:
        text = (
            "# HELP vllm:e2e Seconds.\n# TYPE vllm:e2e histogram\n"
            'vllm:e2e_bucket{engine="0",le="+Inf",model_name="big"} 3.0\n'
            'vllm:e2e_count{engine="0",model_name="big"} 3.0\nvllm:e2e_sum{engine="0",model_name="big"} 0.5\n'
            "# HELP vllm:tokens_total T.\n# TYPE vllm:tokens_total counter\nvllm:tokens_total 2.0\n"
            "# HELP vllm:tokens_created T.\n# TYPE vllm:tokens_created gauge\nvllm:tokens_created 1.7e+09\n"
        )
        return PlainTextResponse(text)

    @contextlib.contextmanager
    def running(self) -> Iterator[SmallEngine]:
        """Served on its socket until the block ends."""
        routes = [
            *(Route(path, self.answer, methods=["POST"]) for path in (*_SERVED, "/v1/reward")),
            Route("/v1/responses/{name}", self.answer),
            Route("/v1/responses/{name}/cancel", self.answer, methods=["POST"]),
            Route("/metrics", self._metrics),
        ]
        config = uvicorn.Config(Starlette(routes=routes), uds=str(self.socket), log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the small engine did not start"
                thread.join(0.005)
            yield self
        finally:
            self.go_on.set()
            server.should_exit = True
            thread.join()
