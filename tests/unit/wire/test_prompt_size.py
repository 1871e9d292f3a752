"""What can't fit is refused by its length; what might fit never is."""

from __future__ import annotations

import pytest

from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest
from qserve.wire.prompt_size import check_prompt_size

_MAX_LEN, _LONGEST_TOKEN = 100, 8
_BOUND = _MAX_LEN * _LONGEST_TOKEN


def _message(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "prompt",
    ["x" * (_BOUND + 1), "é" * (_BOUND // 2 + 1), ["x", "x" * (_BOUND + 1)], [1] * (_MAX_LEN + 1),
     [[1], [1] * (_MAX_LEN + 1)], [_message("x" * (_BOUND + 1))],
     [_message([{"type": "text", "text": "x" * (_BOUND + 1)}])]],
)  # fmt: skip
def test_what_cannot_fit_is_refused(prompt):
    with pytest.raises(ApiError) as refused:
        check_prompt_size(prompt, _BOUND, _MAX_LEN)
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    "prompt", [None, "", "x" * _BOUND, ["x" * _BOUND] * 3, [1] * _MAX_LEN, [_message("x" * _BOUND)], [{"a": 1}]]
)
def test_what_might_fit_is_not(prompt):
    check_prompt_size(prompt, _BOUND, _MAX_LEN)


def test_nothing_is_known_of_texts_without_the_tokenizer():
    check_prompt_size("x" * 10_000, None, _MAX_LEN)


def test_messages_as_our_schema_reads_them():
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": [_message("x" * (_BOUND + 1))]})
    with pytest.raises(ApiError):
        check_prompt_size(request.messages, _BOUND, _MAX_LEN)
