"""What can't fit is refused by its length; what might fit never is."""

from __future__ import annotations

import pytest

from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest
from qserve.wire.prompt_size import ContextLimits

_MAX_LEN, _LONGEST_TOKEN = 100, 8
_BOUND = _MAX_LEN * _LONGEST_TOKEN
_LIMITS = ContextLimits(_MAX_LEN, _BOUND)


def _message(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "prompt",
    [
        "x" * (_BOUND + 1),
        "é" * (_BOUND // 2 + 1),
        ["x", "x" * (_BOUND + 1)],
        [1] * (_MAX_LEN + 1),
        [[1], [1] * (_MAX_LEN + 1)],
        [_message("x" * (_BOUND + 1))],
        [_message([{"type": "text", "text": "x" * (_BOUND + 1)}])],
    ],
)
def test_what_cannot_fit_is_refused(prompt):
    with pytest.raises(ApiError) as refused:
        _LIMITS.check(prompt)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "prompt", [None, "", "x" * _BOUND, ["x" * _BOUND] * 3, [1] * _MAX_LEN, [_message("x" * _BOUND)], [{"a": 1}]]
)
def test_what_might_fit_is_not(prompt):
    _LIMITS.check(prompt)


def test_nothing_is_known_of_texts_without_the_tokenizer():
    ContextLimits(_MAX_LEN).check("x" * 10_000)


def test_messages_as_our_schema_reads_them():
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [_message("x" * (_BOUND + 1))]})
    with pytest.raises(ApiError):
        _LIMITS.check(request.messages)


@pytest.mark.parametrize(
    ("max_positions", "said"),
    [(None, "larger --max-model-len, if"), (400, "larger --max-model-len (at most 400)"), (_MAX_LEN, "shorten")],
)
def test_the_error_names_the_flag_where_a_larger_value_would_be_taken(max_positions, said):
    with pytest.raises(ApiError) as refused:
        ContextLimits(_MAX_LEN, _BOUND, max_positions).check([1] * 101)
    assert said in refused.value.message and "101" in refused.value.message and "100" in refused.value.message
    assert ("--max-model-len" in refused.value.message) == (max_positions != _MAX_LEN)


@pytest.mark.parametrize(
    ("max_positions", "most_stretched", "said"),
    [
        (_MAX_LEN, 800, ": shorten the prompt or stretch the model's positions by YaRN: --context (at most 800)"),
        (400, 800, "--max-model-len (at most 400) or stretch the model's positions by YaRN: --context (at most 800)"),
        (_MAX_LEN, _MAX_LEN, ": shorten the prompt"),
        (_MAX_LEN, None, ": shorten the prompt"),
        (None, None, "or with --context, if YaRN stretches it so far"),
    ],
)
def test_and_context_where_yarn_leads_further(max_positions: int | None, most_stretched: int | None, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        ContextLimits(_MAX_LEN, _BOUND, max_positions, most_stretched).check([1] * 101)
    assert refused.value.message.endswith(said)
