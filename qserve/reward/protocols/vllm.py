"""vLLM's pooling API on a reward model, as vLLM 0.32 answers it for a checkpoint with one label.

Unless `use_activation` is false the reward goes through the sigmoid, vLLM's default for one label. Answers hold one
field more than vLLM's: `meta`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from qserve.reward.protocols.job import (
    ModelInfo,
    Scored,
    ScoreJob,
    Text,
    answered,
    conversation,
    job_of,
    texts_of_input,
    usage,
)
from qserve.reward.settings import Truncation
from qserve.wire.errors import ApiError
from qserve.wire.reward.classifiers import ClassifyRequest, EmbeddingRequest, PoolingRequest
from qserve.wire.reward.rankers import RerankRequest, ScoreRequest

__all__ = ["LABEL", "classify", "embeddings", "pooling", "query_texts", "rerank", "score", "token_limits"]

LABEL = "LABEL_0"
"""What transformers calls the only label of a checkpoint that names none."""


def classify(request: ClassifyRequest, about: ModelInfo) -> ScoreJob:
    """POST /classify."""
    labels = about.labels or (LABEL,)

    def answer(scored: Scored) -> dict[str, Any]:
        data: list[dict[str, Any]] = []
        for index, one in enumerate(scored.scores):
            probs = about.values(one, request.raw)
            label = labels[probs.index(max(probs))]
            data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
        return _listed(scored, "classify", data)

    return ScoreJob(_given(request), answer, *_limits(request, about))


@job_of(PoolingRequest)
def pooling(request: PoolingRequest, about: ModelInfo) -> ScoreJob:
    """POST /pooling: one value a text, or with `token_classify` one a token."""
    activate, per_token = about.activation(request.raw), request.task == "token_classify"
    if per_token and about.labels:
        message = f"'task': token_classify is served for models with one label; this one has {len(about.labels)}"
        raise ApiError(400, message, "unsupported_value", "task")

    def answer(scored: Scored) -> dict[str, Any]:
        data: list[dict[str, Any]] = []
        for index, one in enumerate(scored.scores):
            values: Any = about.values(one, request.raw)
            if per_token:
                values = [[activate(value)] for value in one.steps or ()]
            data.append({"index": index, "object": "pooling", "data": values})
        return _listed(scored, "pool", data)

    return ScoreJob(_given(request, every_token=per_token), answer, *_limits(request, about))


@job_of(EmbeddingRequest)
def embeddings(request: EmbeddingRequest, about: ModelInfo) -> ScoreJob:
    """POST /v1/embeddings: a vector of the head's values, of most models one number.

    In base64 they are little-endian float32, as OpenAI's are.
    """
    as_text = request.encoding_format == "base64"

    def answer(scored: Scored) -> dict[str, Any]:
        values = [about.values(one, raw=True) for one in scored.scores]
        vectors = [_base64(one) if as_text else one for one in values]
        data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(vectors)]
        return _listed(scored, "embd", data)

    return ScoreJob(texts_of_input(request.input, "input"), answer)


@job_of(ScoreRequest)
def score(request: ScoreRequest, about: ModelInfo) -> ScoreJob:
    """POST /score: each document as the assistant's answer to its query."""
    activate = about.activation(request.raw)
    queries, documents = request.pairs()
    named = ((index, document, f"documents.{index}") for index, document in enumerate(documents))
    texts = tuple(
        Text(answered(queries[index if len(queries) > 1 else 0], document, name), name)
        for index, document, name in named
    )

    def answer(scored: Scored) -> dict[str, Any]:
        data = [
            {"index": index, "object": "score", "score": activate(value)} for index, value in enumerate(scored.rewards)
        ]
        return _listed(scored, "score", data)

    return ScoreJob(texts, answer, *_limits(request, about), *token_limits(request))


def rerank(request: RerankRequest, about: ModelInfo) -> ScoreJob:
    """POST /rerank: the same for one query, best first."""
    activate = about.activation(request.raw)
    documents = [{"text": one} if isinstance(one, str) else one.told() for one in request.listed()]

    def answer(scored: Scored) -> dict[str, Any]:
        results: list[dict[str, Any]] = [
            {"index": index, "document": document, "relevance_score": activate(value)}
            for index, (document, value) in enumerate(zip(documents, scored.rewards, strict=True))
        ]
        if request.return_documents is False:
            results = [{key: value for key, value in one.items() if key != "document"} for one in results]
        # By the reward, not its sigmoid: that is 1.0 for every large one.
        results.sort(key=lambda one: -scored.rewards[one["index"]])
        tokens = {"prompt_tokens": scored.num_tokens, "total_tokens": scored.num_tokens}
        name = f"score-{uuid4().hex}"
        body = {"id": name, "model": scored.model, "usage": tokens, "results": results[: request.top_n or None]}
        return {**body, "meta": scored.meta}

    texts = query_texts(request.query_text(), request.document_texts(), "documents")
    return ScoreJob(texts, answer, *_limits(request, about), *token_limits(request))


def query_texts(query: str, documents: list[str], where: str) -> tuple[Text, ...]:
    """One query, each document an answer to it."""
    named = ((document, f"{where}.{index}") for index, document in enumerate(documents))
    return tuple(Text(answered(query, document, name), name) for document, name in named)


def _given(request: ClassifyRequest | PoolingRequest, *, every_token: bool = False) -> tuple[Text, ...]:
    if request.messages is not None:
        return (Text(conversation(request.messages, "messages"), "messages", every_token=every_token),)
    return texts_of_input(request.input, "input", every_token=every_token)


def _limits(request: Any, about: ModelInfo) -> tuple[Truncation | None, int | None]:
    """`truncate_prompt_tokens`: how many tokens are kept, -1 for as many as the model takes.

    Raises ApiError 400 for more than that, as vLLM 0.32 does (PoolingBaseServing._validate_request).
    """
    kept: int | None = request.truncate_prompt_tokens
    if kept is None:
        return None, None
    most = about.meta.get("max_length")
    if most is not None and kept > most:
        raise ApiError(
            400,
            f"'truncate_prompt_tokens' is {kept}, but this model reads at most {most} tokens; send a smaller number, "
            "or -1 for as many as it reads",
            "invalid_value",
            "truncate_prompt_tokens",
        )
    return request.truncation_side or "right", kept if kept > 0 else None


def token_limits(request: ScoreRequest | RerankRequest) -> tuple[int | None, int | None]:
    """How many tokens of the query and of each document are read; None: all."""
    return request.max_tokens_per_query or None, request.max_tokens_per_doc or None


def _listed(scored: Scored, kind: str, data: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"id": f"{kind}-{uuid4().hex}", "object": "list", "created": scored.created_unix_s, "model": scored.model}
    return {**head, "data": data, "usage": usage(scored), "meta": scored.meta}


def _base64(values: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
