"""The reward worker's routes: a request becomes a job, its texts tokens, their scores the answer.

Who sends what does not matter to the scorer: it computes together what all of them wait for, and gives each request the
same share. A request's texts are tokenized in portions, each in its turn with those of others, and only so far ahead of
the model as rows need: neither time nor memory of a request with thousands of texts is anybody else's.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from qserve.reward.failures import TextRefused
from qserve.reward.items import Score, ScoreItem, firsts_of
from qserve.reward.protocols.job import ModelInfo, Scored, ScoreJob, Text
from qserve.reward.protocols.table import OF_VECTORS, PROTOCOLS, Protocol
from qserve.reward.recipe.without_model import NoModel
from qserve.reward.scoring.fair_queue import Flow
from qserve.reward.serving.metrics import RewardMetrics
from qserve.reward.serving.portions import is_large, portions
from qserve.reward.serving.report import report_of
from qserve.reward.serving.scorer import Scorer
from qserve.wire.errors import ApiError, Dialect
from qserve.wire.reward.table import BY_PATH
from qserve.wire.worker_headers import CLIENT
from qserve.worker.app import worker_app
from qserve.worker.asgi import CLIENT_CLOSED, body_of, unless_client_leaves

if TYPE_CHECKING:
    from qserve.reward.recipe.parts import RecipeScorer

__all__ = ["build_app"]

# A larger body is read in a thread, and only so many such requests are held in memory as objects: some 10 bytes a byte.
_LARGE_BYTES = 1 << 16
_LARGE_REQUESTS = 2
# An answer with more vectors is written in a thread, too.
_FEW_VECTORS = 16


def build_app(
    scorer: Scorer | NoModel,
    models: tuple[str, ...],
    key: str,
    memory: Callable[[], dict[str, Any] | Awaitable[dict[str, Any]]],
    parts: RecipeScorer | None = None,
) -> ASGIApp:
    """The ASGI app of a worker that serves `scorer` under the names `models` to whoever knows `key`.

    `memory` tells what the worker holds. The scorer runs already. `parts` combine its rewards with rules and judges.
    """
    metrics = RewardMetrics(scorer)
    host = _Host(scorer, models[0], metrics, parts)
    protocols = PROTOCOLS if scorer.vectors is None else OF_VECTORS

    async def answered_memory() -> dict[str, Any]:
        found = memory()
        return await found if inspect.isawaitable(found) else found

    async def report(request: Request) -> Response:
        return JSONResponse(report_of(scorer.stats, metrics.recent))

    return worker_app(
        [
            Route("/v1/qserve/report", report),
            *(Route(path, host.endpoint(protocol), methods=["POST"]) for path, protocol in protocols.items()),
        ],
        models,
        key,
        card=lambda: {
            "max_model_len": scorer.max_length,
            "reward" if scorer.vectors is None else "embed": scorer.meta | (parts.meta if parts is not None else {}),
        },
        metrics=metrics.exposition,
        memory=answered_memory,
        dialect_of=lambda path: BY_PATH[path].dialect if path in BY_PATH else Dialect.OPENAI,
    )


class _Host:
    """The story of a request: read, make tokens, score, tell."""

    def __init__(
        self, scorer: Scorer | NoModel, model: str, metrics: RewardMetrics, parts: RecipeScorer | None
    ) -> None:
        self._model = None if isinstance(scorer, NoModel) else scorer
        self._model_meta = scorer.meta
        self._metrics = metrics
        self._parts = parts
        self._about = ModelInfo(model, self._meta(), takes_references=parts is not None, vectors=scorer.vectors)
        # One thread each: portions of all requests take turns, a text of megabytes only with its like, and a large body
        # takes up to a second to read.
        self._tokenizing = ThreadPoolExecutor(1, "tokenizing")
        self._tokenizing_large = ThreadPoolExecutor(1, "tokenizing-large")
        self._reading = ThreadPoolExecutor(1, "reading")
        self._large_requests = asyncio.Semaphore(_LARGE_REQUESTS)

    def endpoint(self, protocol: Protocol) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            body = await body_of(request)
            began_s = time.perf_counter()
            client = request.headers.get(CLIENT)
            answer = await unless_client_leaves(request, self._answer(protocol, body, began_s, client))
            return Response(status_code=CLIENT_CLOSED) if answer is None else answer

        return endpoint

    async def _answer(self, protocol: Protocol, body: bytes, began_s: float, client: str | None) -> Response:
        loop = asyncio.get_running_loop()
        if len(body) <= _LARGE_BYTES:
            job = self._read(protocol, body)
            scores = await self._score(job, client)
            if self._about.vectors is None or len(scores) <= _FEW_VECTORS:
                return self._response(job, scores, began_s)
            return await loop.run_in_executor(self._reading, self._response, job, scores, began_s)
        async with self._large_requests:
            job = await loop.run_in_executor(self._reading, self._read, protocol, body)
            scores = await self._score(job, client)
            return await loop.run_in_executor(self._reading, self._response, job, scores, began_s)

    def _read(self, protocol: Protocol, body: bytes) -> ScoreJob:
        return protocol.job(protocol.schema.parse(body), self._about)

    def _meta(self) -> dict[str, Any]:
        meta = self._model_meta | (self._parts.meta if self._parts is not None else {})
        return {name: value for name, value in meta.items() if value is not None}

    async def _score(self, job: ScoreJob, client: str | None) -> list[Score]:
        """The scores in order: the model's own, or what a recipe makes of them."""
        if job.max_prompt_tokens is not None or job.max_answer_tokens is not None:
            job = await self._cut(job)
        if self._parts is None:
            return await self._of_model(job)
        if any(text.every_token for text in job.texts):
            raise ApiError(400, "'task': token_classify needs one model; this one combines parts", "unsupported")
        of_model = await self._of_model(job) if self._model is not None else None
        return await self._parts.scores(job.texts, of_model, client)

    async def _cut(self, job: ScoreJob) -> ScoreJob:
        """The job with no more of each text than is to be read, a portion at a time as they are tokenized."""
        if self._model is None:
            message = "a limit of tokens needs a model's tokenizer, but this one has only rules and judges"
            raise ApiError(400, message, "unsupported_value", "max_tokens_per_doc")
        loop, template, texts = asyncio.get_running_loop(), self._model.template, list[Text]()
        for portion in portions(job.texts):
            thread = self._tokenizing_large if is_large(portion) else self._tokenizing
            texts += await loop.run_in_executor(thread, _shortened, portion, job, template.beginning)
        return replace(job, texts=tuple(texts))

    async def _of_model(self, job: ScoreJob) -> list[Score]:
        """The scores in order. As soon as a portion fails, what is left of the request is neither read nor computed."""
        model = self._model
        assert model is not None, "a recipe without a model has no scores of one"
        loop, flow = asyncio.get_running_loop(), Flow()
        scores: list[Score] = []
        firsts: list[int] = []
        known: dict[bytes, int] = {}
        running: deque[tuple[int, asyncio.Task[list[Score]]]] = deque()
        try:
            for portion in portions(job.texts):
                thread = self._tokenizing_large if is_large(portion) else self._tokenizing
                items = await loop.run_in_executor(thread, self._items, portion, job)
                firsts += firsts_of(items, len(firsts), known)
                num_tokens = sum(len(item.token_ids) for item in items)
                running.append((num_tokens, asyncio.create_task(model.score(items, flow))))
                while sum(tokens for tokens, _ in running) > model.tokens_ahead:
                    scores += await running.popleft()[1]
            while running:
                scores += await running.popleft()[1]
        finally:
            tasks = [task for _, task in running]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [scores[place] for place in firsts]

    def _items(self, texts: Sequence[Text], job: ScoreJob) -> list[ScoreItem]:
        return [self._item(text, job) for text in texts]

    def _item(self, text: Text, job: ScoreJob) -> ScoreItem:
        """Raises TextRefused, with the field that the text came from."""
        assert self._model is not None
        try:
            tokens = self._model.template.encode(text.content, truncate=job.truncate, max_length=job.max_length)
        except TextRefused as error:
            raise TextRefused(f"'{text.where}': {error}", error.code, text.where) from None
        positions = tuple(range(len(tokens.token_ids))) if text.every_token else None
        return ScoreItem(tokens.token_ids, positions, truncated=tokens.truncated or text.truncated)

    def _response(self, job: ScoreJob, scores: Sequence[Score], began_s: float) -> Response:
        latency_s = time.perf_counter() - began_s
        self._metrics.observe(scores, latency_s)
        meta = {**self._meta(), "truncated": sum(score.truncated for score in scores)}
        body = job.answer(Scored(scores, self._about.model, meta, round(latency_s * 1e3, 3), int(time.time())))
        if isinstance(body, bytes):
            return Response(body, media_type="application/json")
        # A list has no field for how its scores came about; a header has.
        headers = {"x-qserve-meta": json.dumps(meta)} if isinstance(body, list) else None
        return JSONResponse(body, headers=headers)


def _shortened(texts: Sequence[Text], job: ScoreJob, beginning: Callable[[str, int], str]) -> list[Text]:
    """Texts with no more of their prompts and answers than the request allows (`max_tokens_per_doc` of rankers).

    `beginning` takes a text and a number of tokens. Only messages are cut; other texts have no parts.
    """
    return [_shortened_text(text, job, beginning) for text in texts]


def _shortened_text(text: Text, job: ScoreJob, beginning: Callable[[str, int], str]) -> Text:
    *before, last = list(text.content)
    messages = [
        message
        if limit is None or not isinstance(message, Mapping)
        else {**message, "content": beginning(str(message["content"]), limit)}
        for message, limit in [*((one, job.max_prompt_tokens) for one in before), (last, job.max_answer_tokens)]
    ]
    content = tuple(messages)
    return replace(text, content=content, truncated=content != text.content)  # type: ignore[arg-type]
