"""Requests of RLHF trainers to a remote reward model: OpenRLHF, LLaMA-Factory, ms-swift."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import uuid4

from qserve.reward.protocols.job import ModelInfo, Scored, ScoreJob, Text, conversation, job_of, texts_of_input, usage
from qserve.reward.settings import Truncation
from qserve.wire.reward.trainers import ChatRequest, GetRewardRequest, ScoreEvaluationRequest

__all__ = ["chat", "get_reward", "score_evaluation"]


@job_of(GetRewardRequest)
def get_reward(request: GetRewardRequest, about: ModelInfo) -> ScoreJob:
    """OpenRLHF reads `rewards` for the advantage, `scores` for its filter, and averages `extra_logs` into its logs."""

    def answer(scored: Scored) -> dict[str, Any]:
        rewards, lengths = scored.rewards, [one.num_tokens for one in scored.scores]
        return {"rewards": rewards, "scores": rewards, "extra_logs": {"reward_tokens": lengths}, "meta": scored.meta}

    texts = texts_of_input(request.query, "query")
    if about.takes_references:
        prompts, labels = (_each(value, len(texts)) for value in (request.prompts, request.labels))
        texts = tuple(
            replace(text, prompt=prompt, reference=label)
            for text, prompt, label in zip(texts, prompts, labels, strict=True)
        )
    return ScoreJob(texts, answer)


def _each(value: Any, count: int) -> list[str | None]:
    """OpenRLHF's `prompts` and `labels`: as many as queries, or nothing that could be used."""
    values = value if isinstance(value, list) else [value]
    if len(values) != count:
        return [None] * count
    return [str(one) if isinstance(one, (str, int, float)) else None for one in values]


@job_of(ScoreEvaluationRequest)
def score_evaluation(request: ScoreEvaluationRequest, about: ModelInfo) -> ScoreJob:
    """LLaMA-Factory: templated texts, cut at `max_length` from the right, as its own server does."""

    def answer(scored: Scored) -> dict[str, Any]:
        head = {"id": f"scoreeval-{uuid4().hex}", "object": "score.evaluation", "model": scored.model}
        return {**head, "scores": scored.rewards, "usage": usage(scored), "meta": scored.meta}

    cut: Truncation | None = "right" if request.max_length is not None else None
    return ScoreJob(texts_of_input(request.messages, "messages"), answer, cut, request.max_length)


@job_of(ChatRequest)
def chat(request: ChatRequest, about: ModelInfo) -> ScoreJob:
    """ms-swift: a chat completion whose content is the reward, as JSON writes a number."""

    def answer(scored: Scored) -> dict[str, Any]:
        message = {"role": "assistant", "content": json.dumps(scored.rewards[0])}
        return {
            "id": f"chatcmpl-{uuid4().hex}",
            "object": "chat.completion",
            "created": scored.created_unix_s,
            "model": scored.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": usage(scored),
            "meta": scored.meta,
        }

    return ScoreJob((Text(conversation(request.messages, "messages"), "messages"),), answer)
