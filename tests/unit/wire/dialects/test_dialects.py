"""Other APIs' requests are chat requests, and a chat's answer is theirs: held to the models of their own SDKs."""

from __future__ import annotations

import json
from typing import Any

import openai.types.responses
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from qserve.wire.dialects.messages import CountTokensRequest, MessagesRequest
from qserve.wire.dialects.messages_answer import MessagesAnswer
from qserve.wire.dialects.responses import ResponsesRequest
from qserve.wire.dialects.responses_answer import ResponsesAnswer
from qserve.wire.errors import ApiError, Dialect
from qserve.wire.openai import ChatCompletionRequest
from qserve.wire.sampling import SAMPLED

CALCULATOR = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
DELTAS: list[dict[str, Any]] = [
    {"reasoning": "I a", "reasoning_content": "I a"},
    {"reasoning": "sk."},
    {},
    {"content": "Let"},
    {"content": " me"},
    {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "calculator", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"expression": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"1+2"}'}}]},
    {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "clock", "arguments": "{}"}}]},
]
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 7,
    "total_tokens": 16,
    "completion_tokens_details": {"reasoning_tokens": 3},
}


def messages(**fields):
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return MessagesRequest.parse(json.dumps(body).encode())


def responses(**fields):
    return ResponsesRequest.parse(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def chat_of(request):
    """As the worker reads it: a translation is a chat request in every field."""
    fields = request.to_chat()
    ChatCompletionRequest.model_validate(fields)
    return fields


def said(kind, deltas, finish_reason="stop", stop=None, usage=USAGE, **echo):
    """The answer's events, and its document."""
    answer = kind({"model": "m", **echo}, "0a", 1, 9)
    lines = [*answer.begin()]
    for delta in deltas:
        lines += answer.push(delta)
    lines += answer.end(finish_reason, stop, usage)
    events = []
    for line in lines:
        name, data = line.decode().removesuffix("\n\n").split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events, answer.document()


def test_a_conversation_of_anthropics():
    request = messages(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "1+2?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I ask.", "signature": ""},
                    {"type": "tool_use", "id": "call_1", "name": "calculator", "input": {"expression": "1+2"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Well?"},
                    {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "3"}]},
                ],
            },
        ],
        tools=[{"name": "calculator", "description": "Adds.", "input_schema": CALCULATOR, "type": "custom"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["\n"],
        top_k=5,
        thinking={"type": "enabled", "budget_tokens": 2000},
        metadata={"user_id": "x"},
    )
    chat = chat_of(request)
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+2?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I ask.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "calculator", "arguments": '{"expression": "1+2"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "user", "content": "Well?"},
    ]
    assert chat["tools"][0]["function"] == {"name": "calculator", "description": "Adds.", "parameters": CALCULATOR}
    assert (chat["tool_choice"], chat["parallel_tool_calls"], chat["stop"]) == ("required", False, ["\n"])
    assert (chat["reasoning_effort"], chat["thinking_token_budget"]) == ("medium", 2000)


def test_an_answer_that_is_begun_is_continued():
    begun = messages(messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is"}])
    assert chat_of(begun)["continue_final_message"] is True
    assert "continue_final_message" not in chat_of(messages())


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"colour": 1}, "'colour' is not a field"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "--engine vllm"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
            "has no block 'tool_use'",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "no tool 'bash_20250124'"),
        ({"mcp_servers": [{"url": "x"}]}, "calls no tools itself"),
        ({"tool_choice": {"type": "tool"}}, "'name'"),
    ],
)
def test_what_is_refused_of_anthropics(fields, match):
    with pytest.raises(ApiError, match=match):
        messages(**fields)


def test_a_stored_conversation_is_refused_in_the_sdks_words():
    """By which its loop of tools goes on without one."""
    with pytest.raises(ApiError, match="nothing is stored") as refused:
        messages(thread={"type": "create"})
    error = json.loads(refused.value.body(Dialect.ANTHROPIC))["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_a_tool_that_must_be_called_needs_one():
    """Checked where every chat is."""
    with pytest.raises(ApiError, match="'tools' has none"):
        ChatCompletionRequest.parse(json.dumps(messages(tool_choice={"type": "any"}).to_chat()).encode())


def test_tokens_are_counted_of_the_same_prompt():
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "calculator", "input_schema": CALCULATOR}],
    }
    counted = CountTokensRequest.parse(json.dumps(body).encode()).to_chat()
    assert counted.items() <= chat_of(messages(**body)).items()


def test_an_answer_in_anthropics_words():
    from anthropic.types import Message, RawMessageStreamEvent  # they take a second, wherever these tests are collected

    events, whole = said(MessagesAnswer, DELTAS, "tool_calls")
    message = Message.model_validate(whole)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "I ask." and message.content[1].text == "Let me"
    assert message.content[2].input == {"expression": "1+2"} and message.content[3].name == "clock"
    assert message.stop_reason == "tool_use" and message.usage.output_tokens == 7
    for event in events:
        TypeAdapter(RawMessageStreamEvent).validate_python(event)
    indices = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert indices == [0, 1, 2, 3] and events[-1]["type"] == "message_stop"
    started = sum(event["type"] == "content_block_start" for event in events)
    assert started == sum(event["type"] == "content_block_stop" for event in events)


@pytest.mark.parametrize(
    ("reason", "stop", "told"),
    [("stop", None, "end_turn"), ("length", None, "max_tokens"), ("stop", "\n", "stop_sequence")],
)
def test_why_an_answer_ended(reason, stop, told):
    _, whole = said(MessagesAnswer, [{"content": "x"}], reason, stop)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (told, stop)


def test_items_of_a_response_are_messages():
    request = responses(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "1+2?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "I ask.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "calculator", "arguments": "{}", "id": "fc_1"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ],
        tools=[{"type": "function", "name": "calculator", "parameters": CALCULATOR, "strict": True}],
        tool_choice={"type": "function", "name": "calculator"},
        reasoning={"effort": "none"},
        text={"format": {"type": "text"}},
        max_output_tokens=5,
        include=["reasoning.encrypted_content"],
        store=True,
    )
    chat = chat_of(request)
    assert chat["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+2?"},
        {
            "role": "assistant",
            "content": "I ask.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "calculator"}}
    assert (chat["max_tokens"], chat["reasoning_effort"]) == (5, "none")
    formatted = responses(text={"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}})
    assert chat_of(formatted)["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"previous_response_id": "resp_1"}, "nothing is stored"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "no tool of type 'web_search'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' is not known"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "--engine vllm"),
        ({"text": {"verbosity": "loud"}}, "verbosity"),
        ({"truncation": "some"}, "truncation"),
    ],
)
def test_what_is_refused_of_a_response(fields, match):
    with pytest.raises(ApiError, match=match):
        responses(**fields)


@pytest.mark.parametrize(
    "fields",
    [{"text": {"verbosity": "low"}}, {"text": {"verbosity": "high"}}, {"truncation": "auto"}, {"max_tool_calls": 1}],
)
def test_a_harmless_field_of_a_response_changes_nothing(fields):
    assert chat_of(responses(**fields)) == chat_of(responses())


def test_an_answer_as_a_response():
    events, whole = said(ResponsesAnswer, DELTAS, metadata={"of": "test"}, tools=[])
    response = openai.types.responses.Response.model_validate(whole)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Let me" and response.output[0].content[0].text == "I ask."
    assert response.output[2].arguments == '{"expression": "1+2"}' and response.output[2].call_id == "call_1"
    assert (response.status, response.metadata) == ("completed", {"of": "test"})
    assert response.usage.output_tokens_details.reasoning_tokens == 3
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed" and events[-1]["response"] == whole
    added = {event["item"]["id"] for event in events if event["type"] == "response.output_item.added"}
    assert added == {item.id for item in response.output}


def test_a_response_that_is_cut_off():
    events, whole = said(ResponsesAnswer, [{"content": "x"}], "length")
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events[-1]["type"] == "response.incomplete" and whole["output"][0]["status"] == "incomplete"


def test_cached_tokens_in_anthropics_words():
    """Its clients add the three counts, and its SDK's stream takes those of `message_delta` over the first."""
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": 8}}
    events, whole = said(MessagesAnswer, [{"content": "a"}], usage=usage)
    (begun,) = (event["message"]["usage"] for event in events if event["type"] == "message_start")
    (ended,) = (event["usage"] for event in events if event["type"] == "message_delta")
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert [ended[name] for name in names] == [1, 0, 8] and whole["usage"] == ended
    assert sum(begun[name] for name in names) == sum(ended[name] for name in names) == USAGE["prompt_tokens"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.5),
        ("top_p", 0.9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("seed", 7),
        ("stop", ["\n"]),
        ("stop_token_ids", [3]),
        ("include_stop_str_in_output", True),
        ("ignore_eos", True),
        ("presence_penalty", 0.5),
        ("frequency_penalty", 1.0),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": -100}),
        ("skip_special_tokens", False),
        ("cache_salt", "a"),
        ("include_reasoning", False),
        ("structured_outputs", {"choice": ["yes", "no"]}),
        ("structured_outputs", {"json": {"type": "object"}}),
        ("chat_template_kwargs", {"enable_thinking": False}),
    ],
)
def test_what_draws_a_response_reaches_the_chat(name, value):
    """As on vLLM, whose Responses take every field by which a chat's tokens are drawn."""
    assert chat_of(responses(**{name: value}))[name] == value
    assert name not in chat_of(responses())
    assert name not in chat_of(responses(**{name: None}))


def test_no_field_of_sampling_is_left_out_of_responses():
    told = test_what_draws_a_response_reaches_the_chat.pytestmark[0].args[1]
    assert {name for name, _ in told} >= SAMPLED
    assert set(ResponsesRequest.model_fields) >= SAMPLED
