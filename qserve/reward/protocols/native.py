"""POST /v1/reward: rewards of texts, the ranking of answers to one prompt, margins of pairs, steps of a solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qserve.reward.evaluation.records import contents_of
from qserve.reward.protocols.job import (
    Content,
    ModelInfo,
    Scored,
    ScoreJob,
    Text,
    answered,
    asked,
    conversation,
    job_of,
    sigmoid,
    usage,
)
from qserve.rows.fields import Fields, RowError
from qserve.rows.preference import preference_of
from qserve.rows.tools import template_fields_of
from qserve.wire.errors import ApiError
from qserve.wire.reward.fields import ConversationObject
from qserve.wire.reward.messages import ScoredMessage
from qserve.wire.reward.native import Normalization, PreferencePair, RewardRequest

__all__ = ["reward"]


@job_of(RewardRequest)
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
        prompt, template_fields = request.prompt, _template_fields(request, "")
        return tuple(
            Text(_with_template_fields(answered(prompt, _answer(one, about), name), template_fields), name)
            for one, name in ((one, f"responses.{index}") for index, one in enumerate(request.responses))
        )
    if request.conversations is not None:
        named = ((one, f"conversations.{index}") for index, one in enumerate(request.conversations))
        return tuple(Text(_conversation(one, name), name) for one, name in named)
    if request.token_ids is not None:
        return tuple(Text(tuple(ids), f"token_ids.{index}") for index, ids in enumerate(request.token_ids))
    places = ((text, f"texts.{index}") for index, text in enumerate(request.texts or ()))
    return tuple(Text(_not_empty(text, name), name) for text, name in places)


def _conversation(one: Sequence[ScoredMessage] | ConversationObject, name: str) -> Content:
    if not isinstance(one, ConversationObject):
        return conversation(one, name)
    if one.messages is None:
        return {"text": _not_empty(one.text or "", f"{name}.text"), "add_eos": bool(one.add_eos)}
    return _with_template_fields(conversation(one.messages, f"{name}.messages"), _template_fields(one, name))


def _with_template_fields(messages: tuple[Mapping[str, Any], ...], template_fields: Mapping[str, Any]) -> Content:
    return {"messages": messages, **template_fields} if template_fields else messages


def _template_fields(one: RewardRequest | ConversationObject, where: str) -> dict[str, Any]:
    """What the chat template is given with the messages. Raises ApiError for what is no tool, or no variable."""
    try:
        return template_fields_of(Fields({"tools": one.tools, "chat_template_kwargs": one.chat_template_kwargs}))
    except RowError as error:
        raise _refused(error, where) from None


def _refused(error: RowError, where: str) -> ApiError:
    """The refusal of what `where` names, or of one field of it; "": the request."""
    if error.field is None:
        return ApiError(400, f"'{where}': {error}", error.code, where)
    param = f"{where}.{error.field}" if where else error.field
    return ApiError(400, f"'{param}' {error.text}", error.code, param)


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


def _not_empty(text: str, where: str) -> str:
    if not text:
        raise ApiError(400, f"'{where}' is an empty text; there is nothing to score", "empty_input", where)
    return text


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


def _of_pair(pair: PreferencePair, index: int) -> tuple[Text, ...]:
    """As rows of data sets are read. Raises ApiError with the words that `qserve train` and `eval-reward` say."""
    where = f"pairs.{index}"
    prompt = None if pair.prompt is None else pair.prompt if isinstance(pair.prompt, str) else asked(pair.prompt)
    row = {
        "prompt": prompt,
        "chosen": _side(pair.chosen),
        "rejected": _side(pair.rejected),
        "tools": pair.tools,
        "chat_template_kwargs": pair.chat_template_kwargs,
    }
    try:
        found = preference_of(Fields(row))
    except RowError as error:
        raise _refused(error, where) from None
    assert found is not None, "a pair has both sides"
    sides = zip(contents_of(found), ("chosen", "rejected"), strict=True)
    return tuple(Text(_as_content(content), f"{where}.{name}") for content, name in sides)


def _side(answer: str | Sequence[ScoredMessage]) -> Any:
    return answer if isinstance(answer, str) else asked(answer)


def _as_content(content: Any) -> Content:
    return tuple(content) if isinstance(content, list) else content


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
    """`probability` that the chosen answer is preferred, by Bradley and Terry: from the head's own values. Equal texts
    have equal values, and are a tie.
    """
    return [
        {
            "index": index // 2,
            "chosen_reward": rewards[index],
            "rejected_reward": rewards[index + 1],
            "margin": rewards[index] - rewards[index + 1],
            "probability": sigmoid(raw[index] - raw[index + 1]),
            **({"tie": True} if raw[index] == raw[index + 1] else {}),
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
