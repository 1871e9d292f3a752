"""The table of reward protocols: path, request schema, and translation to a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qserve.reward.protocols import native, sglang, tei, trainers, vllm
from qserve.reward.protocols.job import ModelInfo, ScoreJob
from qserve.wire import reward as wire
from qserve.wire.openai import Wire

__all__ = ["PROTOCOLS", "Protocol"]


@dataclass(frozen=True)
class Protocol:
    """`job` makes the job of a request that is a `schema`."""

    schema: type[Wire]
    job: Callable[[Any, ModelInfo], ScoreJob]


def _classify(request: wire.ClassifyRequest, about: ModelInfo) -> ScoreJob:
    return sglang.classify(request, about) if request.is_sglang else vllm.classify(request, about)


def _rerank(request: wire.RerankRequest, about: ModelInfo) -> ScoreJob:
    return tei.rerank(request, about) if request.texts is not None else vllm.rerank(request, about)


_SCORE = Protocol(wire.ScoreRequest, vllm.score)
_RERANK = Protocol(wire.RerankRequest, _rerank)
_PREDICT = Protocol(wire.PredictRequest, tei.predict)

PROTOCOLS: Mapping[str, Protocol] = {
    "/v1/reward": Protocol(wire.RewardRequest, native.reward),
    "/get_reward": Protocol(wire.GetRewardRequest, trainers.get_reward),
    "/classify": Protocol(wire.ClassifyRequest, _classify),
    "/pooling": Protocol(wire.PoolingRequest, vllm.pooling),
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/v1/embeddings": Protocol(wire.EmbeddingRequest, vllm.embeddings),
    "/predict": _PREDICT,
    "/": _PREDICT,
    "/v1/chat/completions": Protocol(wire.ChatRequest, trainers.chat),
    "/v1/score/evaluation": Protocol(wire.ScoreEvaluationRequest, trainers.score_evaluation),
}
"""All of them are POST."""
