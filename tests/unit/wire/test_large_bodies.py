"""A large wrong body costs its length, not an error per item: naming a million errors took minutes and gigabytes."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from qserve.wire.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest
from qserve.wire.validation import from_validation

N = 20_000
_MESSAGE = {"role": "user", "content": "x"}
WRONG = {
    "floats as ids": (CompletionRequest, {"prompt": [0.5] * N}),
    "floats as ids of a batch": (CompletionRequest, {"prompt": [[0.5] * N] * 3}),
    "messages": (ChatCompletionRequest, {"messages": [{"role": "x", "content": [{"a": 1}]}] * N}),
    "parts": (ChatCompletionRequest, {"messages": [{"role": "user", "content": [{"type": "x"}] * N}]}),
    "stop": (CompletionRequest, {"prompt": "x", "stop": [""] * N}),
    "stop_token_ids": (CompletionRequest, {"prompt": "x", "stop_token_ids": [-1] * N}),
    "logit_bias": (CompletionRequest, {"prompt": "x", "logit_bias": {str(index): "x" for index in range(N)}}),
    "metadata": (CompletionRequest, {"prompt": "x", "metadata": {str(index): 1 for index in range(N)}}),
    "unknown fields": (ChatCompletionRequest, {"messages": [_MESSAGE], **{f"k{index}": 1 for index in range(N)}}),
    "unknown fields of a message": (
        ChatCompletionRequest,
        {"messages": [{**_MESSAGE, **{f"k{index}": 1 for index in range(N)}}]},
    ),
    "a name": (CompletionRequest, {"prompt": "x", "k" * N: 1}),
    "tokens": (DetokenizeRequest, {"tokens": [-1] * N}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_item_ends_the_check_of_its_list(case):
    request, fields = WRONG[case]
    with pytest.raises(ValidationError) as refused:
        request.model_validate_json(json.dumps(body := {"model": "m", **fields}))
    assert refused.value.error_count() <= 8
    error = from_validation(refused.value, body)
    assert error.status == 400 and len(error.message) < 2000
