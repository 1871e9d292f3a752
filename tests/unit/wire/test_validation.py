"""What is wrong with a request is said in our words: what was seen, and what is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from qserve.reward.protocols.table import PROTOCOLS
from qserve.wire.batches import CreateBatchRequest
from qserve.wire.dialects.messages import MessagesRequest
from qserve.wire.dialects.responses import ResponsesRequest
from qserve.wire.errors import ApiError
from qserve.wire.openai import ChatCompletionRequest, CompletionRequest
from qserve.wire.schema import Wire
from qserve.wire.validation import NEEDED

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
PROMPT = {"model": "m", "prompt": "Hello"}
MESSAGE = {**CHAT, "max_tokens": 4}
INPUT = {"model": "m", "input": "Hello"}
TEXT = {"type": "text", "text": "a", "b": 1}
OF_TEXT = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "a b"}}


def refused(schema: type[Wire], body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        schema.parse(json.dumps(body).encode())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("schema", "body", "said"),
    [
        (ChatCompletionRequest, [], "the body is an empty list; an object is needed"),
        (ChatCompletionRequest, {"messages": CHAT["messages"]}, "'model' is missing"),
        (
            ChatCompletionRequest,
            {**CHAT, "messages": []},
            "'messages' is an empty list; a list of at least 1 item is needed",
        ),
        (ChatCompletionRequest, {**CHAT, "messages": {}}, "'messages' is an empty object; a list is needed"),
        (ChatCompletionRequest, {**CHAT, "messages": ["x"]}, "'messages.0' is 'x'; an object is needed"),
        (
            ChatCompletionRequest,
            {**CHAT, "messages": [{"role": "judge", "content": "x"}]},
            "'messages.0.role' is 'judge'; 'system', 'developer', 'user', 'assistant' or 'tool' is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "'messages.0.content.0.text' is 5; a string is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "n": 0, "temperature": 3, "top_p": 0},
            "'temperature' is 3; a number of at most 2 is needed; 'top_p' is 0; a number above 0 is needed; "
            "'n' is 0; a number of at least 1 is needed",
        ),
        (ChatCompletionRequest, {**CHAT, "seed": "a"}, "'seed' is 'a'; a whole number is needed"),
        (
            ChatCompletionRequest,
            {**CHAT, "seed": 10**60},
            f"'seed' is a number of very many digits; a number of at most {2**63 - 1} is needed",
        ),
        (ChatCompletionRequest, {**CHAT, "temperature": True}, "'temperature' is true; a number is needed"),
        (ChatCompletionRequest, {**CHAT, "stream": 1}, "'stream' is 1; true or false is needed"),
        (ChatCompletionRequest, {**CHAT, "stop": 5}, "'stop' is 5; a string or a list is needed"),
        (ChatCompletionRequest, {**CHAT, "stop": [5]}, "'stop.0' is 5; a string is needed"),
        (
            ChatCompletionRequest,
            {**CHAT, "stop": ["a"] * 17},
            "'stop' is a list of 17 items; a string or a list of at most 16 items is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "stop": ""},
            "'stop' is an empty string; a string of at least 1 character or a list is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "stop": "a" * 4097},
            "'stop' is a string of 4,097 characters; a string of at most 4,096 characters or a list is needed",
        ),
        (ChatCompletionRequest, {**CHAT, "metadata": 5}, "'metadata' is 5; an object is needed"),
        (ChatCompletionRequest, {**CHAT, "metadata": {"List": 5}}, "'metadata.List' is 5; a string is needed"),
        (
            ChatCompletionRequest,
            {**CHAT, "logit_bias": {"1": 1000}},
            "'logit_bias.1' is 1000; a number of at most 100 is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "tools": [FUNCTION]},
            "'tools.0.function.name' is 'a b'; a string that matches ^[a-zA-Z0-9_.:-]{1,128}$ is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "tools": [OF_TEXT]},
            "'tools.0.function.parameters': a schema of type 'string' can't describe a function; "
            "one of type 'object' is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "tool_choice": 3},
            "'tool_choice' is 3; 'none', 'auto' or 'required' or an object is needed",
        ),
        (
            ChatCompletionRequest,
            {**CHAT, "response_format": {"type": "x"}},
            "'response_format.type' is 'x'; one of 'text', 'json_object', 'json_schema', 'json', 'regex' is needed",
        ),
        (ChatCompletionRequest, {**CHAT, "response_format": {}}, "'response_format.type' is missing"),
        (
            CompletionRequest,
            {**PROMPT, "prompt": [0.5]},
            "'prompt.0' is 0.5; a whole number, a string or a list is needed",
        ),
        (
            CompletionRequest,
            {**PROMPT, "prompt": []},
            "'prompt' is an empty list; a string or a list of at least 1 item is needed",
        ),
        (
            MessagesRequest,
            {**MESSAGE, "messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "'messages.0.content.0.tool_use_id' is missing",
        ),
        (
            MessagesRequest,
            {**MESSAGE, "messages": [{"role": "user", "content": [TEXT]}]},
            "'messages.0.content.0.b' is not a field of this request",
        ),
        (
            ResponsesRequest,
            {**INPUT, "text": {"format": {"type": "x"}}},
            "'text.format.type' is 'x'; one of 'text', 'json_object', 'json_schema' is needed",
        ),
        (
            ResponsesRequest,
            {**INPUT, "input": [{"type": "x"}]},
            "'input.0': an input item of type 'x' is not known; there are message, function_call, "
            "function_call_output, custom_tool_call, custom_tool_call_output and reasoning",
        ),
    ],
)
def test_what_was_seen_and_what_is_needed(schema: type[Wire], body: Any, said: str) -> None:
    assert refused(schema, body).message == said


def test_param_is_the_first_field_that_is_named() -> None:
    assert refused(ChatCompletionRequest, {**CHAT, "stop": [5], "n": 0}).param == "stop.0"
    assert refused(CompletionRequest, {**PROMPT, "prompt": [0.5]}).param == "prompt.0"
    assert refused(CompletionRequest, 5).param is None


def test_of_many_problems_four_are_told() -> None:
    said = refused(ChatCompletionRequest, {**CHAT, "n": 0, "top_p": 0, "min_p": 2, "seed": "a", "stream": 1}).message
    assert said.count(" is needed") == 4


def schemas(base: type[Wire] = Wire) -> Iterator[type[Wire]]:
    """Those that a body can be, or a part of it."""
    inner = base.__subclasses__()
    if not inner:
        yield base
    for one in inner:
        yield from schemas(one)


# Something that each kind of field refuses, whatever its bounds are.
VALUES = (
    True,
    5,
    -(10**30),
    10**30,
    0.5,
    -1e300,
    1e300,
    "",
    "x",
    "x y" * 9000,
    [],
    [[]],
    [{}],
    [5],
    [0.5],
    ["x", ""],
    ["x"] * 300,
    [[5, -1]],
    {},
    {"x": 5},
    {"type": "x"},
    {"x": "y"},
    {str(at): 1 for at in range(20)},
)


def test_every_kind_of_error_that_a_request_can_have_has_a_sentence_of_ours() -> None:
    """Each field of each schema with values of every kind: what pydantic calls it is in the table, or our own."""
    assert PROTOCOLS and CreateBatchRequest  # imported: their schemas are among the subclasses
    kinds: dict[str, str] = {}
    for schema in set(schemas()):
        fields = {field.alias or name for name, field in schema.model_fields.items()}
        for body in ({}, [], 5, *({name: value} for name in fields for value in VALUES)):
            try:
                schema.model_validate_json(json.dumps(body))
            except ValidationError as error:
                items = error.errors(include_url=False, include_input=False)
                kinds |= {item["type"]: item["msg"] for item in items}
    pydantics = {
        kind for kind, said in kinds.items() if "Input " in said or "should " in said or said == "Field required"
    }
    assert pydantics - {"missing", "union_tag_not_found"} <= set(NEEDED)
    assert set(NEEDED) <= set(kinds)  # and none that no request can have
