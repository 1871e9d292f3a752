"""The worker: python -m echo_engine.worker SPEC.json. A word is a token, and the answer is the question.

$ECHO_PAUSE_S is how long it waits before each word of a stream, for whoever wants to see one running.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from qserve.wire.sse import DONE, event
from qserve.worker import worker_process
from qserve.worker.asgi import KeyGuard
from qserve.worker.process import WorkerSpec, report_phase


async def _serve(document: dict[str, Any]) -> None:
    spec = WorkerSpec.from_json(document)
    shouts = "--shout" in spec.plan.engine_args
    pause_s = float(os.environ.get("ECHO_PAUSE_S", "0"))
    report_phase("listening for an echo")

    async def say(request: Request) -> Response:
        asked = await request.json()
        if not asked["most"]:
            return JSONResponse({"oops": "no words are asked for"}, 400)
        said, kind = asked["words"], asked["kind"]
        name = "message" if kind == "chat.completion" else "text"
        words = (said.upper() if shouts else said).split()[: asked["most"]]
        head = {"id": "echo", "object": kind, "created": int(time.time()), "model": asked["model"]}
        num_prompt, num_words = len(said.split()), len(words)
        usage = {"prompt_tokens": num_prompt, "completion_tokens": num_words, "total_tokens": num_prompt + num_words}

        def shape(text: str) -> Any:
            return {"role": "assistant", "content": text} if name == "message" else text

        if not asked["stream"]:
            choice = {"index": 0, name: shape(" ".join(words)), "finish_reason": "stop", "logprobs": None}
            return JSONResponse({**head, "choices": [choice], "usage": usage})

        async def events() -> AsyncIterator[bytes]:
            part = "delta" if name == "message" else name
            for index, word in enumerate(words):
                await asyncio.sleep(pause_s)
                ends = "stop" if index + 1 == len(words) else None
                yield event({**head, "choices": [{"index": 0, part: shape(word + " "), "finish_reason": ends}]})
            if asked["usage"]:
                yield event({**head, "choices": [], "usage": usage})
            yield DONE

        return StreamingResponse(events(), media_type="text/event-stream")

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        return Response("")

    async def models(request: Request) -> Response:
        entries = [{"id": name, "object": "model", "created": 0, "owned_by": "echo"} for name in spec.models]
        return JSONResponse({"object": "list", "data": entries})

    async def memory(request: Request) -> Response:
        held = psutil.Process().memory_info().rss
        return JSONResponse({"runtime_bytes": held, "total_bytes": held, "resident_bytes": held, "sources": {}})

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/qserve/memory", memory),
            Route("/say", say, methods=["POST"]),
        ]
    )
    await worker_process.listen(KeyGuard(app, spec.key), spec.address)


if __name__ == "__main__":
    worker_process.run(_serve, "echo needs no memory to speak of", "importing a web framework")
