"""What clients of OpenAI's API write beside their messages: used, harmless, or refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest

USER = {"role": "user", "content": "Hello"}


def parsed(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.parse(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "fields",
    [
        {"service_tier": "flex"},
        {"prompt_cache_key": "k"},
        {"safety_identifier": "s"},
        {"store": True},
        {"store": False},
        {"parallel_tool_calls": True},
        {"parallel_tool_calls": False},
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"prediction": None},
        {"prompt_cache_retention": "24h"},
        {"modalities": ["text"]},
        {"verbosity": "medium"},
        {"verbosity": "low"},
        {"verbosity": "high"},
        {"logprobs": False, "top_logprobs": 0},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ],
    ids=json.dumps,
)
def test_a_harmless_field_is_taken(fields: dict[str, Any]) -> None:
    parsed(**fields)


def test_developer_is_system_for_the_template() -> None:
    request = parsed(messages=[{"role": "developer", "content": "Be brief."}, USER])
    assert request.messages[0].for_template() == {"role": "system", "content": "Be brief."}


def test_what_comes_back_of_an_earlier_answer_is_taken() -> None:
    earlier = {"role": "assistant", "content": "42", "reasoning": "6*7", "refusal": None, "annotations": []}
    message = parsed(messages=[USER, earlier, USER]).messages[1].for_template()
    assert message == {"role": "assistant", "content": "42", "reasoning_content": "6*7"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"bad_words": ["x"]}, "bad_words"),
        ({"documents": ["x"]}, "documents"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0",
        ),
    ],
)
def test_a_refusal_says_which_engine_serves_it(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert "--engine vllm" in error.message
    assert error.param == param
    assert "str" not in error.message.split(": ")[0]


def test_an_unknown_field_is_refused_by_name() -> None:
    assert refusal(zzz=1).message == "'zzz' is not a field of this request"
    assert refusal(temprature=1).message == "'temprature' is not a field of this request; did you mean 'temperature'?"


def test_a_harmless_field_that_asks_for_more_says_what_to_do() -> None:
    assert "'low', 'medium' or 'high' is needed" in refusal(verbosity="loud").message
    assert refusal(modalities=["text", "audio"]).message == "'modalities.1' is 'audio'; 'text' is needed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"tool_choice": "required"}, "tool_choice"), ({"top_logprobs": 2}, "top_logprobs")],
    ids=json.dumps,
)
def test_an_error_of_several_fields_names_the_first(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param
