"""The reward worker's routes: a request becomes a job, its texts tokens, their scores the answer.

Who sends what does not matter to the scorer: it computes together what all of them wait for.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from qserve.engine.asgi import CLIENT_CLOSED, KeyGuard, to_response, unless_client_leaves
from qserve.reward.items import Score, ScoreItem
from qserve.reward.protocols.job import About, Scored, ScoreJob, Text
from qserve.reward.protocols.table import PROTOCOLS, Protocol
from qserve.reward.serving.metrics import RewardMetrics
from qserve.reward.serving.report import report_of
from qserve.wire.errors import ApiError, Dialect, from_validation

if TYPE_CHECKING:
    from qserve.reward.scoring.scorer import RewardScorer
    from qserve.reward.vllm.scorer import VllmScorer

__all__ = ["build_app"]

_log = logging.getLogger("qserve.worker")


def build_app(
    scorer: RewardScorer | VllmScorer,
    models: tuple[str, ...],
    key: str,
    memory: Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]],
) -> ASGIApp:
    """The ASGI app of a worker that serves `scorer` under the names `models` to whoever knows `key`.

    `memory` tells what the worker holds. The scorer runs already.
    """
    created_unix_s = int(time.time())
    metrics = RewardMetrics(scorer)
    host = _Host(scorer, models[0], metrics)

    async def models_list(request: Request) -> Response:
        entry = {
            "object": "model", "created": created_unix_s, "owned_by": "qserve", "max_model_len": scorer.max_length,
            "reward": scorer.meta,
        }  # fmt: skip
        return JSONResponse({"object": "list", "data": [{"id": name, **entry} for name in models]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def exposition(request: Request) -> Response:
        return Response(metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def held(request: Request) -> Response:
        found = memory()
        return JSONResponse(await found if inspect.isawaitable(found) else found)

    async def report(request: Request) -> Response:
        return JSONResponse(report_of(scorer.stats, metrics.recent))

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", exposition),
            Route("/v1/models", models_list),
            Route("/v1/qserve/memory", held),
            Route("/v1/qserve/report", report),
            *(Route(path, host.endpoint(protocol), methods=["POST"]) for path, protocol in PROTOCOLS.items()),
        ],
        exception_handlers={ApiError: _api_error, Exception: _unexpected},
    )
    return KeyGuard(app, key)


class _Host:
    """The story of a request: read, make tokens, score, tell."""

    def __init__(self, scorer: RewardScorer | VllmScorer, model: str, metrics: RewardMetrics) -> None:
        self._scorer = scorer
        self._metrics = metrics
        self._meta = {name: value for name, value in scorer.meta.items() if value is not None}
        self._about = About(model, self._meta)
        # One thread: a text of 100 000 tokens must not keep the event loop from answering others.
        self._tokenizing = ThreadPoolExecutor(1, "tokenizing")

    def endpoint(self, protocol: Protocol) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = await request.body()
            began_s = time.perf_counter()
            job = protocol.job(_parsed(protocol, body), self._about)
            scores = await unless_client_leaves(request, self._score(job))
            if scores is None:
                return Response(status_code=CLIENT_CLOSED)
            latency_s = time.perf_counter() - began_s
            self._metrics.observe(scores, latency_s)
            scored = self._scored(scores, latency_s)
            body = job.tell(scored)
            # A list has no room for how its scores came about; a header has.
            headers = {"x-qserve-meta": json.dumps(dict(scored.meta))} if isinstance(body, list) else None
            return JSONResponse(body, headers=headers)

        return endpoint

    async def _score(self, job: ScoreJob) -> list[Score]:
        loop = asyncio.get_running_loop()
        items = await loop.run_in_executor(self._tokenizing, self._items, job)
        return await self._scorer.score(items)

    def _items(self, job: ScoreJob) -> list[ScoreItem]:
        return [self._item(text, job) for text in job.texts]

    def _item(self, text: Text, job: ScoreJob) -> ScoreItem:
        """Raises ApiError 400, with the field that the text came from."""
        try:
            tokens = self._scorer.template.encode(text.content, truncate=job.truncate, max_length=job.max_length)
        except ApiError as error:
            raise ApiError(error.status, f"'{text.where}': {error.message}", error.code, text.where) from None
        positions = tuple(range(len(tokens.token_ids))) if text.every_token else None
        return ScoreItem(tokens.token_ids, positions, truncated=tokens.truncated)

    def _scored(self, scores: Sequence[Score], latency_s: float) -> Scored:
        meta = {**self._meta, "truncated": sum(score.truncated for score in scores)}
        return Scored(scores, self._about.model, meta, round(latency_s * 1e3, 3), int(time.time()))


def _parsed(protocol: Protocol, body: bytes) -> Any:
    try:
        return protocol.schema.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from None


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return to_response(error, Dialect.TEI if request.url.path == "/predict" else Dialect.OPENAI)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log.exception("a request failed", exc_info=error)
    return to_response(ApiError(500, "the worker failed on this request; its log tells why", "internal_error"))
