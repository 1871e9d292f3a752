"""POST /v1/reward: rewards of texts, the ranking of answers to one prompt, margins of pairs, steps of a solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qserve.reward.protocols.job import ModelInfo, Scored, ScoreJob, Text, answered, conversation, sigmoid, turn, usage
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatMessage
from qserve.wire.reward import Normalization, PreferencePair, RewardRequest

__all__ = ["reward"]


def reward(request: RewardRequest, about: ModelInfo) -> ScoreJob:
    """The job of a native request. Raises ApiError 400 for what this model can't be asked."""
    scale = _scale(request.normalize, about)
    texts = _with_references(_texts(request, about), request, about)

    def answer(scored: Scored) -> dict[str, Any]:
        rewards = [scale(value) for value in scored.rewards]
        body: dict[str, Any] = {"object": "list", "model": scored.model, "data": _data(scored, rewards, about)}
        if request.responses is not None:
            body["ranking"] = sorted(range(len(rewards)), key=lambda index: -rewards[index])
        if request.pairs is not None:
            body["pairs"] = _pairs(rewards, scored.rewards)
        return {**body, "usage": usage(scored), "latency_ms": scored.latency_ms, "meta": scored.meta}

    return ScoreJob(texts, answer, request.truncate, request.max_length)


def _texts(request: RewardRequest, about: ModelInfo) -> tuple[Text, ...]:
    if request.pairs is not None:
        return tuple(text for index, pair in enumerate(request.pairs) for text in _of_pair(pair, index))
    if request.responses is not None and request.prompt is not None:
        prompt = request.prompt
        return tuple(
            Text(answered(prompt, _answer(one, about), name), name)
            for one, name in ((one, f"responses.{index}") for index, one in enumerate(request.responses))
        )
    if request.conversations is not None:
        named = ((one, f"conversations.{index}") for index, one in enumerate(request.conversations))
        return tuple(Text(conversation(one, name), name) for one, name in named)
    if request.token_ids is not None:
        return tuple(Text(tuple(ids), f"token_ids.{index}") for index, ids in enumerate(request.token_ids))
    return tuple(_templated(text, index) for index, text in enumerate(request.texts or ()))


def _with_references(texts: tuple[Text, ...], request: RewardRequest, about: ModelInfo) -> tuple[Text, ...]:
    references = request.references
    if references is None:
        return texts
    if not about.takes_references:
        message = f"'references' are for rules and judges, and {about.model!r} has none (--reward FILE.yaml)"
        raise ApiError(400, message, "unsupported_value", "references")
    each = [references] * len(texts) if isinstance(references, str) else references
    if request.pairs is not None and not isinstance(references, str):
        each = [one for one in references for _ in range(2)]
    if len(each) != len(texts):
        message = f"'references' has {len(references)} entries; give one string, or one for each answer (each pair)"
        raise ApiError(400, message, "invalid_value", "references")
    return tuple(replace(text, reference=one) for text, one in zip(texts, each, strict=True))


def _templated(text: str, index: int) -> Text:
    where = f"texts.{index}"
    if not text:
        raise ApiError(400, f"'{where}' is an empty text; there is nothing to score", "empty_input", where)
    return Text(text, where)


def _answer(answer: str | list[str], about: ModelInfo) -> str:
    """Steps are joined as Qwen's process reward models were trained: the token that ends a step after each."""
    if isinstance(answer, str):
        return answer
    if about.step_token is None:
        raise ApiError(
            400,
            f"{about.model!r} is not a process reward model: it scores whole answers; send each as one string",
            "invalid_value",
            "responses",
        )
    return "".join(step + about.step_token for step in answer)


def _of_pair(pair: PreferencePair, index: int) -> tuple[Text, Text]:
    chosen, rejected = f"pairs.{index}.chosen", f"pairs.{index}.rejected"
    return (
        Text(_side(pair, pair.chosen, chosen), chosen),
        Text(_side(pair, pair.rejected, rejected), rejected),
    )


def _side(pair: PreferencePair, answer: str | list[ChatMessage], where: str) -> tuple[Mapping[str, Any], ...]:
    if isinstance(answer, str):
        assert pair.prompt is not None, "the request's model refuses it"
        return answered(pair.prompt, answer, where)
    before = [] if pair.prompt is None else pair.prompt
    turns = [turn("user", before)] if isinstance(before, str) else before
    return conversation([*turns, *answer], where)


def _data(scored: Scored, rewards: list[float], about: ModelInfo) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"index": index, "reward": value} for index, value in enumerate(rewards)]
    for row, score in zip(rows, scored.scores, strict=True):
        if score.steps is not None:
            row["steps"] = list(score.steps)
        if score.attributes is not None:
            row["attributes"] = dict(zip(about.labels, score.attributes, strict=True))
        row |= {"num_tokens": score.num_tokens, "truncated": score.truncated, "position": score.position}
    return rows


def _pairs(rewards: list[float], raw: list[float]) -> list[dict[str, Any]]:
    """`probability` that the chosen answer is preferred, by Bradley and Terry: from the head's own values."""
    return [
        {
            "index": index // 2,
            "chosen_reward": rewards[index],
            "rejected_reward": rewards[index + 1],
            "margin": rewards[index] - rewards[index + 1],
            "probability": sigmoid(raw[index] - raw[index + 1]),
        }
        for index in range(0, len(rewards), 2)
    ]


class _Scale:
    """(reward - mean) / std."""

    def __init__(self, mean: float, std: float) -> None:
        self._mean = mean
        self._std = std

    def __call__(self, value: float) -> float:
        return (value - self._mean) / self._std


def _scale(normalize: bool | Normalization, about: ModelInfo) -> _Scale:
    if isinstance(normalize, Normalization):
        return _Scale(normalize.mean, normalize.std)
    if not normalize:
        return _Scale(0.0, 1.0)
    mean, std = about.meta.get("mean"), about.meta.get("std")
    if mean is None or not std:
        raise ApiError(
            400,
            f"the checkpoint of {about.model!r} records no mean and standard deviation of its rewards; send "
            '"normalize": {"mean": …, "std": …}',
            "invalid_value",
            "normalize",
        )
    return _Scale(mean, std)
