"""Tools, structured output and thoughts through the unmodified openai client."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from qserve.demo.calling import CALCULATOR as THE_DEMOS
from qserve.demo.calling import held_out_callings
from tests.tiny.serving.test_client_chat import QUESTION, ask, joined, streamed

SUM = [{"role": "user", "content": "What is 12+30+11?"}]
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "required": ["a", "op"],
            "additionalProperties": False,
            "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}, "op": {"enum": ["add", "sub"]}},
        },
    },
}
NAMED = {"type": "function", "function": {"name": "calculator"}}
SCHEMA = {
    "type": "object",
    "required": ["answer", "unit"],
    "additionalProperties": False,
    "properties": {"answer": {"type": "integer"}, "unit": {"enum": ["apples", "pears"]}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}


class Sum(BaseModel):
    answer: int
    is_even: bool


def no_thoughts(**fields: Any) -> dict[str, Any]:
    return {"reasoning_effort": "none", **fields}


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
@pytest.mark.parametrize("thinks", [True, False])
def test_a_call_follows_its_schema(client: openai.OpenAI, choice: Any, thinks: bool) -> None:
    fields = {} if thinks else no_thoughts()
    answer = ask(client, tools=[CALCULATOR], tool_choice=choice, parallel_tool_calls=False, **fields).choices[0]
    (call,) = answer.message.tool_calls
    assert (call.type, call.function.name) == ("function", "calculator")
    jsonschema.validate(json.loads(call.function.arguments), CALCULATOR["function"]["parameters"])
    assert answer.message.content is None
    assert answer.finish_reason == ("stop" if choice is NAMED else "tool_calls")


def test_a_streamed_call_is_the_whole_one(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = no_thoughts(tools=[CALCULATOR], tool_choice="required", parallel_tool_calls=False)
    whole = ask(client, **fields).choices[0].message.tool_calls[0].function
    chunks = streamed(client, **fields)
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert {call.index for call in calls} == {0}
    assert [call.function.name for call in calls if call.function.name] == [whole.name]
    assert "".join(call.function.arguments for call in calls) == whole.arguments
    assert sum(bool(call.id) for call in calls) == 1 and len(calls) > 3
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_conversation_with_a_call_goes_on(client: openai.OpenAI) -> None:
    asked = ask(client, **no_thoughts(tools=[CALCULATOR], tool_choice="required", parallel_tool_calls=False))
    call = asked.choices[0].message.tool_calls[0]
    turns = [*QUESTION, asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
    assert ask(client, turns, tools=[CALCULATOR], max_tokens=5).choices[0].message.role == "assistant"


def test_tools_that_may_not_be_called_change_nothing(client: openai.OpenAI) -> None:
    plain = ask(client).choices[0].message.content
    for fields in ({"tools": [CALCULATOR], "tool_choice": "none"}, {"tools": []}, {"tool_choice": "none"}):
        assert ask(client, **fields).choices[0].message.content == plain


def test_an_answer_follows_its_schema_after_a_thought(client: openai.OpenAI) -> None:
    answer = ask(client, SUM, response_format=FORMAT)
    jsonschema.validate(json.loads(answer.choices[0].message.content), SCHEMA)
    assert answer.choices[0].message.reasoning_content == "12+30=42\n42+11=53"
    chunks = streamed(client, SUM, response_format=FORMAT)
    assert joined(chunks) == answer.choices[0].message.content


def test_an_agent_calls_its_tool_and_then_answers_in_its_form(client: openai.OpenAI) -> None:
    """Tools and `response_format` in every request: the answer is either."""
    (one,) = held_out_callings("call", 1, seed=9)
    form = {
        "type": "json_schema",
        "json_schema": {
            "name": "s",
            "schema": {"type": "object", "required": ["x"], "properties": {"x": {"type": "boolean"}}},
        },
    }
    fields: dict[str, Any] = {"tools": [THE_DEMOS], "response_format": form}
    messages: list[Any] = [{"role": "user", "content": one.question}]
    asked = ask(client, messages, **fields).choices[0]
    (call,) = asked.message.tool_calls
    assert json.loads(call.function.arguments) == {"expression": one.expression}
    told = {"role": "tool", "tool_call_id": call.id, "content": one.answer}
    said = ask(client, [*messages, asked.message, told], **fields).choices[0]
    if not said.message.tool_calls:  # the demo may also ask again
        jsonschema.validate(json.loads(said.message.content), form["json_schema"]["schema"])


def test_the_clients_own_parsing(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="demo", messages=QUESTION, response_format=Sum, temperature=1.5, seed=3, reasoning_effort="none"
    )  # type: ignore[call-overload]
    assert isinstance(answer.choices[0].message.parsed, Sum)


def test_answers_are_the_same_alone_and_in_company(client: openai.OpenAI) -> None:
    def one(seed: int) -> str:
        fields: dict[str, Any] = no_thoughts(temperature=1.2, seed=seed, logprobs=True, response_format=FORMAT)
        return str(ask(client, **fields).choices[0].message.content)

    alone = [one(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(one, range(6))) == alone
    several = ask(client, n=3, seed=0, temperature=1.2, reasoning_effort="none", response_format=FORMAT)
    for choice in several.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "a" /[0-9]{2}/'}}, "a[0-9]{2}"),
    ],
    ids=["regex", "choice", "guided", "grammar"],
)
def test_other_structures(client: openai.OpenAI, extra: dict[str, Any], expected: str) -> None:
    content = ask(client, **no_thoughts(extra_body=extra)).choices[0].message.content
    text = client.completions.create(model="demo", prompt="1+1=", max_tokens=30, temperature=0, extra_body=extra)
    assert re.fullmatch(expected, content) and re.fullmatch(expected, text.choices[0].text)


def test_a_structure_that_is_complete_ends_before_min_tokens(client: openai.OpenAI) -> None:
    extra = {"structured_outputs": {"choice": ["yes"]}, "min_tokens": 50}
    answer = ask(client, **no_thoughts(extra_body=extra)).choices[0]
    assert (answer.message.content, answer.finish_reason) == ("yes", "stop")


def test_a_stop_string_cuts_a_structure(client: openai.OpenAI) -> None:
    extra = {"structured_outputs": {"choice": ["yes, yes"]}}
    assert ask(client, **no_thoughts(extra_body=extra, stop=[","])).choices[0].message.content == "yes"


def test_thoughts_stand_beside_the_answer(client: openai.OpenAI) -> None:
    answer = ask(client, SUM)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("12+30=42\n42+11=53", "53")
    assert message.reasoning == message.reasoning_content
    details = answer.usage.completion_tokens_details
    assert 10 < details.reasoning_tokens < answer.usage.completion_tokens
    chunks = streamed(client, SUM, stream_options={"include_usage": True})
    thought = "".join(choice.delta.model_extra.get("reasoning_content", "") for c in chunks for choice in c.choices)
    assert (thought, joined(chunks)) == (message.reasoning_content, "53")
    assert chunks[-1].usage == answer.usage


def test_thoughts_are_turned_off_and_hidden(client: openai.OpenAI) -> None:
    assert ask(client, SUM, reasoning_effort="none").choices[0].message.reasoning_content is None
    hidden = ask(client, SUM, extra_body={"include_reasoning": False})
    assert hidden.choices[0].message.reasoning_content is None
    assert hidden.usage.completion_tokens_details.reasoning_tokens > 10
    assert hidden.choices[0].message.content == "53"


def test_an_impossible_structure_is_a_400_and_the_next_is_answered(client: openai.OpenAI) -> None:
    for schema in ({"type": "integer", "minimum": 5, "maximum": 3}, {"not": {}}, {"$ref": "#"}):
        wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError, match=r"no answer can follow|grammars do not support 'not'"):
            ask(client, response_format=wrong)
    with pytest.raises(openai.BadRequestError, match=r"tools\.0\.function\.name"):
        ask(client, tools=[{"type": "function", "function": {}}])
    assert ask(client).choices[0].message.content
