"""Tools and structured output through the unmodified openai client: the same over every engine.

A folder of tests with a fixture `client`, of a service of the demo, takes them by an import.
"""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qserve.demo.calling import CALCULATOR, Calling, held_out_callings

__all__ = [
    "test_a_call_goes_before_a_structure",
    "test_a_thought_stands_beside_the_answer",
    "test_a_tool_that_must_be_called_is_called",
    "test_a_tool_without_parameters_gets_no_arguments",
    "test_an_answer_follows_its_schema",
    "test_harmless_fields_are_harmless",
    "test_made_up_schemas_are_followed",
    "test_structures_are_followed_by_their_older_names_too",
    "test_the_demo_asks_its_calculator_and_says_what_it_said",
    "test_the_demo_streams_the_call_of_its_calculator",
    "test_the_sdk_puts_a_streamed_call_together",
    "test_what_no_answer_can_follow_is_refused",
]

QUESTION: Any = [{"role": "user", "content": "What is 17 + 25?"}]
PARAMETERS = {
    "type": "object",
    "required": ["a", "op"],
    "additionalProperties": False,
    "properties": {"a": {"enum": [17, 25]}, "op": {"enum": ["add", "sub"]}},
}
TOOL: Any = {"type": "function", "function": {"name": "calculator", "description": "Adds.", "parameters": PARAMETERS}}
NAMED: Any = {"type": "function", "function": {"name": "calculator"}}

HARMLESS: tuple[dict[str, Any], ...] = (
    {"tools": []},
    {"tools": [], "tool_choice": "auto"},
    {"tools": [], "tool_choice": "none"},
    {"tool_choice": "none"},
    {"tool_choice": "auto"},
    {"parallel_tool_calls": True},
    {"parallel_tool_calls": False},
    {"store": True},
    {"store": False},
    {"service_tier": "flex"},
    {"service_tier": "auto"},
    {"prompt_cache_key": "k"},
    {"user": "u"},
    {"safety_identifier": "s"},
    {"metadata": {"a": "b"}},
    {"logit_bias": {}},
    {"stop": []},
    {"prediction": None},
    {"prompt_cache_retention": "24h"},
    {"modalities": ["text"]},
    {"verbosity": "medium"},
    {"verbosity": "low"},
    {"verbosity": "high"},
    {"top_logprobs": 0},
    {"messages": [*QUESTION, {"role": "assistant", "content": "42", "refusal": None, "annotations": []}, *QUESTION]},
    {"messages": [{"role": "developer", "content": "Be brief."}, *QUESTION]},
)

_SCALARS = st.sampled_from(
    [{"type": "boolean"}, {"type": "null"}, {"enum": ["x", "y z"]}, {"enum": [1, 2.5, None]}, {"const": "ok"}]
)


def _objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(st.sampled_from(["a", "b", "long name", "ключ"]), inner, min_size=1, max_size=3)
    return properties.map(
        lambda one: {"type": "object", "properties": one, "required": list(one), "additionalProperties": False}
    )


SCHEMAS = _objects(
    st.recursive(
        _SCALARS,
        lambda inner: _objects(inner) | inner.map(lambda one: {"type": "array", "items": one, "maxItems": 2}),
        max_leaves=5,
    )
)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 300, **fields}
    return client.chat.completions.create(**fields)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_tool_that_must_be_called_is_called(client: openai.OpenAI, choice: Any) -> None:
    answer = ask(client, tools=[TOOL], tool_choice=choice, reasoning_effort="none").choices[0]
    assert answer.message.tool_calls
    for call in answer.message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_a_tool_without_parameters_gets_no_arguments(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "now"}}
    answer = ask(client, tools=[tool], tool_choice="required", parallel_tool_calls=False, reasoning_effort="none")
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})


def test_harmless_fields_are_harmless(client: openai.OpenAI) -> None:
    """What agent frameworks send without meaning anything by it."""
    for fields in HARMLESS:
        assert ask(client, extra_body=fields).choices[0].message.content == "42", fields
    for fields in ({"tools": []}, {"store": True}, {"service_tier": "flex"}, {"tool_choice": "auto"}):
        answer = client.responses.create(model="demo", input="What is 17 + 25?", temperature=0, extra_body=fields)
        assert answer.output_text == "42", fields


def test_a_thought_stands_beside_the_answer(client: openai.OpenAI) -> None:
    """The demo thinks where there is something to think about, and answers at once elsewhere."""
    asked: Any = [{"role": "user", "content": "What is 12+30+11?"}]
    answer = ask(client, messages=asked)
    thought, said = answer.choices[0].message.reasoning, answer.choices[0].message.content
    assert (thought, said) == ("12+30=42\n42+11=53", "53")
    assert 15 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    chunks = list(ask(client, messages=asked, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(getattr(one, "reasoning", None) or "" for one in deltas) == thought
    assert "".join(one.content or "" for one in deltas) == said
    assert not getattr(ask(client).choices[0].message, "reasoning", None)


def test_a_call_goes_before_a_structure(client: openai.OpenAI) -> None:
    """A tool that must be called leaves no text; instructor sends both."""
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["x"]}}}
    answer = ask(client, tools=[TOOL], tool_choice="required", response_format=form, reasoning_effort="none")
    assert answer.choices[0].message.tool_calls and not answer.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_the_sdk_puts_a_streamed_call_together(client: openai.OpenAI, choice: Any) -> None:
    """Its own accumulator, which takes two entries of one chunk for two calls."""
    asked: Any = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
    with client.chat.completions.stream(
        model="demo", messages=QUESTION, max_tokens=300, extra_body={"reasoning_effort": "none"}, **asked
    ) as stream:
        deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert call.function.name == "calculator"
    assert "".join(deltas) == call.function.arguments
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def question_of(one: Calling) -> Any:
    return [{"role": "user", "content": one.question}]


def test_the_demo_asks_its_calculator_and_says_what_it_said(client: openai.OpenAI) -> None:
    """A loop as agents have it, nothing forced: 10 products and quotients that training never saw."""
    num_right = 0
    for one in held_out_callings("call", 10, seed=9):
        messages = question_of(one)
        asked = ask(client, messages=messages, tools=[CALCULATOR]).choices[0]
        if asked.finish_reason != "tool_calls":
            continue
        (call,) = asked.message.tool_calls
        found = json.loads(call.function.arguments) == {"expression": one.expression}
        told = {"role": "tool", "tool_call_id": call.id, "content": one.answer}
        messages += [asked.message.model_dump(exclude_none=True), told]
        said = ask(client, messages=messages, tools=[CALCULATOR]).choices[0].message.content
        num_right += found and said == one.answer
    assert num_right >= 9


def test_the_demo_streams_the_call_of_its_calculator(client: openai.OpenAI) -> None:
    (one,) = held_out_callings("call", 1, seed=9)
    chunks = list(ask(client, messages=question_of(one), tools=[CALCULATOR], stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.function.name] == ["calculator"]
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert json.loads(arguments) == {"expression": one.expression}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_an_answer_follows_its_schema(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": PARAMETERS, "strict": True}}
    answer = ask(client, response_format=form, reasoning_effort="none").choices[0]
    jsonschema.validate(json.loads(answer.message.content), PARAMETERS)
    assert answer.finish_reason == "stop"


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(schema=SCHEMAS)
def test_made_up_schemas_are_followed(client: openai.OpenAI, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    answer = ask(client, response_format=form, reasoning_effort="none", max_tokens=400).choices[0]
    assert answer.finish_reason == "stop"
    jsonschema.validate(json.loads(answer.message.content), schema)


@pytest.mark.parametrize("name", ["structured_outputs", "guided"])
def test_structures_are_followed_by_their_older_names_too(client: openai.OpenAI, name: str) -> None:
    for kind, value, pattern in (
        ("regex", "[0-9]{3}", "[0-9]{3}"),
        ("choice", ["yes", "no"], "yes|no"),
        ("grammar", 'root ::= "a" [0-9] [0-9]', "a[0-9]{2}"),
        ("json", PARAMETERS, r"{.*}"),
    ):
        fields = {name: {kind: value}} if name == "structured_outputs" else {f"guided_{kind}": value}
        answer = ask(client, reasoning_effort="none", extra_body=fields).choices[0].message.content
        assert re.fullmatch(pattern, answer), (fields, answer)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {}}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "wrong"}}}},
        {"extra_body": {"structured_outputs": {"regex": "("}}},
    ],
    ids=["tool without a name", "no schema", "no regex"],
)
def test_what_no_answer_can_follow_is_refused(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(client, **fields)
    assert ask(client).choices[0].message.content == "42"
