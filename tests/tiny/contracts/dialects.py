"""OpenAI's Responses and Anthropic's Messages through their own SDKs: the same tests over every engine.

A folder of tests with fixtures `client` (openai's, of a service of the demo) and `messages` (Anthropic's) takes them by
`from tests.tiny.contracts.dialects import *`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import openai
import pytest

if TYPE_CHECKING:  # its types take a second, in every process that collects these tests
    import anthropic


__all__ = [
    "test_a_call_in_anthropics_words",
    "test_a_call_of_a_response",
    "test_a_conversation_with_a_tool_goes_on",
    "test_a_message",
    "test_a_message_that_is_refused",
    "test_a_message_that_is_streamed",
    "test_a_response",
    "test_a_response_of_a_schema",
    "test_a_response_that_is_cut_off",
    "test_a_response_that_is_refused",
    "test_a_response_that_is_streamed",
    "test_ids_of_messages",
    "test_tokens_of_a_message",
    "test_tokens_of_a_response",
]

QUESTION = "What is 17 + 25?"
GREEDY = {"temperature": 0}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"enum": [17, 25]}, "b": {"enum": [17, 25]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"enum": [41, 42]}},
    "required": ["sum"],
    "additionalProperties": False,
}
FUNCTION: Any = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS}
TOOL: Any = {"name": "add", "description": "Adds.", "input_schema": PARAMETERS}


def respond(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(
        **{"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 200, **fields}
    )


def say(client: anthropic.Anthropic, **fields: Any) -> Any:
    """Greedy: the SDK has no `temperature` any more, as the newest of Anthropic's models have none."""
    asked: Any = [{"role": "user", "content": QUESTION}]
    body = {**GREEDY, **fields.pop("extra_body", {})}
    return client.messages.create(
        **{"model": "demo", "messages": asked, "max_tokens": 200, "extra_body": body, **fields}
    )


def test_a_response(client: openai.OpenAI) -> None:
    answer = respond(client, instructions="Be brief.", metadata={"of": "test"})
    assert (answer.output_text, answer.status, answer.object) == ("42", "completed", "response")
    assert answer.usage.output_tokens == 3 and answer.usage.total_tokens > 3
    assert answer.metadata == {"of": "test"}


def test_a_response_that_is_streamed(client: openai.OpenAI) -> None:
    """By the SDK's own accumulator, which raises for an event that does not fit the ones before."""
    with client.responses.stream(model="demo", input=QUESTION, temperature=0, max_output_tokens=200) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == "42"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "42"
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


def test_a_response_of_a_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}
    jsonschema.validate(json.loads(respond(client, text={"format": form}).output_text), SCHEMA)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_a_call_of_a_response(client: openai.OpenAI, is_streamed: bool) -> None:
    fields: dict[str, Any] = {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "add"}}
    if is_streamed:
        events = list(respond(client, stream=True, **fields))
        answer = events[-1].response
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    else:
        answer, deltas = respond(client, **fields), []
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "add" and (not deltas or "".join(deltas) == call.arguments)
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    turns = [
        {"role": "user", "content": QUESTION},
        *[item.model_dump(exclude_none=True) for item in answer.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "42"},
    ]
    assert respond(client, input=turns, tools=[FUNCTION], max_output_tokens=16).output is not None


def test_a_response_that_is_cut_off(client: openai.OpenAI) -> None:
    answer = respond(client, max_output_tokens=1)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"


def test_a_response_that_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        respond(client, extra_body={"colour": "red"})
    with pytest.raises(openai.NotFoundError):
        respond(client, model="gpt-9")


def test_a_message(messages: anthropic.Anthropic) -> None:
    answer = say(messages, system="Be brief.")
    assert (answer.content[-1].text, answer.stop_reason, answer.role) == ("42", "end_turn", "assistant")
    assert answer.usage.output_tokens == 3 and answer.usage.input_tokens > 5
    cut = say(messages, max_tokens=1)
    assert cut.stop_reason == "max_tokens"
    stopped = say(messages, stop_sequences=["2"])
    assert (stopped.content[-1].text, stopped.stop_reason, stopped.stop_sequence) == ("4", "stop_sequence", "2")


def test_a_message_that_is_streamed(messages: anthropic.Anthropic) -> None:
    """By the SDK's own accumulator."""
    asked: Any = [{"role": "user", "content": QUESTION}]
    with messages.messages.stream(model="demo", messages=asked, max_tokens=200, extra_body=GREEDY) as stream:
        assert "".join(stream.text_stream) == "42"
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == 3


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}], ids=["any", "tool"])
def test_a_call_in_anthropics_words(messages: anthropic.Anthropic, choice: Any) -> None:
    choice = {**choice, "disable_parallel_tool_use": True}
    answer = say(messages, tools=[TOOL], tool_choice=choice)
    (block,) = [block for block in answer.content if block.type == "tool_use"]
    jsonschema.validate(block.input, PARAMETERS)
    assert (block.name, answer.stop_reason) == ("add", "tool_use")
    asked: Any = [{"role": "user", "content": QUESTION}]
    with messages.messages.stream(
        model="demo", messages=asked, max_tokens=200, extra_body=GREEDY, tools=[TOOL], tool_choice=choice
    ) as stream:
        final = stream.get_final_message()
    (streamed,) = [block for block in final.content if block.type == "tool_use"]
    assert (streamed.name, streamed.input) == (block.name, block.input)


def test_a_conversation_with_a_tool_goes_on(messages: anthropic.Anthropic) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 17, "b": 25}}
    turns = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"}]},
    ]
    assert say(messages, messages=turns, tools=[TOOL], max_tokens=16).role == "assistant"


def test_tokens_of_a_message(messages: anthropic.Anthropic) -> None:
    asked: Any = [{"role": "user", "content": QUESTION}]
    counted = messages.messages.count_tokens(model="demo", messages=asked)
    for _ in range(2):  # the second is cached, where the engine keeps prompts so short
        usage = say(messages).usage
        told: Any = (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens)
        assert counted.input_tokens == sum(told)


def test_tokens_of_a_response(client: openai.OpenAI) -> None:
    """As many as the usage of its answer says, whatever is part of the prompt; the SDK asks."""
    turns: Any = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "42"},
        {"role": "user", "content": [{"type": "input_text", "text": "And 1 + 1?"}]},
    ]
    tool: Any = {"type": "function", "name": "add", "parameters": PARAMETERS}
    form: Any = {"format": {"type": "json_schema", "name": "s", "schema": PARAMETERS}}
    for fields in (
        {"input": QUESTION},
        {"input": QUESTION, "instructions": "Be brief."},
        {"input": turns},
        {"input": turns, "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": False},
        {"input": QUESTION, "tools": [tool], "tool_choice": "required", "reasoning": {"effort": "none"}},
        {"input": QUESTION, "tools": [tool], "tool_choice": {"type": "function", "name": "add"}},
        {"input": QUESTION, "text": form},
        {"input": QUESTION, "reasoning": {"effort": "none"}},
        {"input": QUESTION, "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"input": QUESTION, "truncation": "disabled", "tools": []},
    ):
        asked: Any = fields
        answer = client.responses.create(model="demo", max_output_tokens=16, **asked)
        counted = client.responses.input_tokens.count(model="demo", **asked)
        assert counted.object == "response.input_tokens"
        assert (fields, counted.input_tokens) == (fields, answer.usage.input_tokens)
    assert client.responses.input_tokens.count(input=QUESTION).input_tokens > 5  # the one model that is served
    assert client.responses.input_tokens.count(instructions="Be brief.").input_tokens > 5
    for wrong in ({}, {"input": QUESTION, "extra_body": {"colour": "red"}}, {"input": [{"type": "colour"}]}):
        with pytest.raises(openai.BadRequestError):
            refused: Any = wrong
            client.responses.input_tokens.count(model="demo", **refused)


def test_ids_of_messages(messages: anthropic.Anthropic) -> None:
    """Of Anthropic's form, and each answer has its request's."""
    import anthropic

    answer = say(messages)
    assert answer.id.startswith("msg_") and len(answer.id) > 10 and answer._request_id
    asked: Any = [{"role": "user", "content": QUESTION}]
    with messages.messages.stream(model="demo", messages=asked, max_tokens=200, extra_body=GREEDY) as stream:
        assert stream.get_final_message().id.startswith("msg_")
        assert stream.response.headers["request-id"]
    for wrong in (
        lambda: say(messages, model="claude-9"),
        lambda: say(messages, max_tokens=0),
        lambda: messages.messages.batches.list(),
        lambda: messages.messages.batches.retrieve("msgbatch_1"),
        lambda: messages.messages.batches.create(requests=[]),
    ):
        with pytest.raises(anthropic.APIStatusError) as refused:
            wrong()
        body: Any = refused.value.body
        assert body["type"] == "error" and refused.value.request_id


def test_a_message_that_is_refused(messages: anthropic.Anthropic) -> None:
    """In Anthropic's shape, which its SDK raises as its own errors."""
    import anthropic

    with pytest.raises(anthropic.BadRequestError) as refused:
        say(messages, extra_body={"colour": "red"})
    body: Any = refused.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        say(messages, model="claude-9")
