"""Paths that two systems share: whose request it is tells a field that only one of them has."""

from __future__ import annotations

from qserve.reward.protocols import sglang, tei, vllm
from qserve.reward.protocols.job import ModelInfo, ScoreJob, job_of
from qserve.wire.reward.classifiers import ClassifyRequest
from qserve.wire.reward.rankers import RerankRequest

__all__ = ["classify", "rerank"]


@job_of(ClassifyRequest)
def classify(request: ClassifyRequest, about: ModelInfo) -> ScoreJob:
    """POST /classify."""
    return sglang.classify(request, about) if request.is_sglang else vllm.classify(request, about)


@job_of(RerankRequest)
def rerank(request: RerankRequest, about: ModelInfo) -> ScoreJob:
    """POST /rerank."""
    return tei.rerank(request, about) if request.texts is not None else vllm.rerank(request, about)
