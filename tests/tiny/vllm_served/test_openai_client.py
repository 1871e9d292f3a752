"""What the `openai` client can ask of vLLM it can ask of the gateway, with the answers that vLLM gives."""

from __future__ import annotations

import json
import re
from typing import Literal

import httpx
import openai
import pydantic
import pytest

from tests.tiny.serving.served import until
from tests.tiny.vllm_served.conftest import KEY

QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [17, 25]}, "b": {"enum": [17, 25]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {"enum": [41, 43]}


def test_chat(client):
    answer = client.chat.completions.create(model="demo", messages=QUESTION, temperature=0, max_tokens=16)
    assert answer.choices[0].message.content == "42" and answer.choices[0].finish_reason == "stop"
    assert answer.model == "demo" and answer.usage.completion_tokens == 3


def test_chat_streams_the_same(client):
    stream = client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "42" and chunks[-1].usage.completion_tokens == 3


def test_n_and_logprobs(client):
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, n=3, max_tokens=4, logprobs=True, top_logprobs=2, seed=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        for token in choice.logprobs.content:
            assert token.logprob <= 0 and len(token.top_logprobs) == 2


def test_completions_of_several_prompts(client):
    answer = client.completions.create(
        model="demo", prompt=["one two", "three four"], n=2, max_tokens=3, temperature=0.5, logprobs=1, echo=True
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text.startswith("one two") and answer.choices[3].text.startswith("three four")
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    stream = client.completions.create(model="demo", prompt="one two", max_tokens=3, temperature=0, stream=True)
    whole = client.completions.create(model="demo", prompt="one two", max_tokens=3, temperature=0)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "add"}}], ids=["required", "named"]
)
def test_tools_that_must_be_called(client, choice):
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, tools=[ADD], tool_choice=choice, max_tokens=300, temperature=0
    )
    calls = answer.choices[0].message.tool_calls
    assert calls  # one or more: `required` allows several
    for call in calls:
        assert call.function.name == "add"
        assert set(json.loads(call.function.arguments)) == {"a", "b"}


def test_tools_that_may_be_called(client):
    """Auto: whether this small model calls is its own affair; the conversation goes on with the tool's answer."""
    first = client.chat.completions.create(model="demo", messages=QUESTION, tools=[ADD], max_tokens=32, temperature=0)
    assert first.choices[0].message.content is not None or first.choices[0].message.tool_calls
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 17, "b": 25}'}}
    turns = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    second = client.chat.completions.create(model="demo", messages=turns, tools=[ADD], max_tokens=8, temperature=0)
    assert second.choices[0].message.role == "assistant"


_BLANKS = r"\s\s|(?<![,:])\s"
"""Others than one after a comma or a colon."""


@pytest.mark.parametrize(("thinks", "blanks"), [(False, r"\s"), (True, _BLANKS)])
def test_parse_gets_an_object(client, thinks, blanks):
    """With no blanks, or those of `json.dumps` after a thought: a model this small would write them to its limit."""

    class Answer(pydantic.BaseModel):
        kind: Literal["sum", "list"]
        certain: bool
        digit: Literal[1, 2, 3]

    answer = client.chat.completions.parse(
        model="demo",
        messages=QUESTION,
        temperature=0,
        max_tokens=300,
        response_format=Answer,
        extra_body={"chat_template_kwargs": {"enable_thinking": thinks}},
    )
    assert isinstance(answer.choices[0].message.parsed, Answer)
    assert not re.search(blanks, answer.choices[0].message.content) and answer.choices[0].finish_reason == "stop"


def test_a_call_has_no_blanks_to_its_limit(client):
    """Inside of lists, of which the demo finds no end, either."""
    parameters = {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"enum": ["a", "b"]}}},
        "required": ["words"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "spell", "parameters": parameters}}
    for seed in range(4):
        answer = client.chat.completions.create(
            model="demo",
            messages=QUESTION,
            tools=[tool],
            tool_choice="required",
            max_tokens=80,
            temperature=1.5,
            seed=seed,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        message = answer.choices[0].message
        calls = message.tool_calls
        written = calls[0].function.arguments if calls else message.content.partition("<tool_call>\n")[2]
        assert written and not re.search(_BLANKS, written.removesuffix("\n</tool_call>")), written


def test_a_json_schema_binds_the_answer(client):
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hello!"}],
        max_tokens=8,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    )
    assert json.loads(answer.choices[0].message.content) in (41, 43)
    for constraint, holds in (
        ({"json": SCHEMA}, lambda text: json.loads(text) in (41, 43)),
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"regex": "[ab]{3}"}, lambda text: len(text) == 3 and set(text) <= {"a", "b"}),
    ):
        answer = client.chat.completions.create(
            model="demo", messages=QUESTION, max_tokens=64, temperature=0, extra_body={"structured_outputs": constraint}
        )
        assert holds(answer.choices[0].message.content), constraint


def test_responses(client):
    answer = client.responses.create(model="demo", input="What is 17 + 25?", temperature=0, max_output_tokens=16)
    assert answer.output_text == "42" and answer.usage.output_tokens == 3
    events = list(
        client.responses.create(
            model="demo",
            input=[{"role": "user", "content": "What is 17 + 25?"}],
            temperature=0,
            max_output_tokens=16,
            stream=True,
        )
    )
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "42"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_of_nobody")


def test_a_conversation_goes_on_with_the_last_responses_own_items(client):
    """Agents hand back what they got, field for field."""
    first = client.responses.create(model="demo", input="What is 17 + 25?", temperature=0, max_output_tokens=16)
    items = [{"role": "user", "content": "What is 17 + 25?"}, *(one.model_dump() for one in first.output)]
    again = client.responses.create(
        model="demo", input=[*items, {"role": "user", "content": "And 1 + 1?"}], max_output_tokens=8
    )
    assert again.status in ("completed", "incomplete")
    message = client.chat.completions.create(model="demo", messages=QUESTION, max_tokens=8).choices[0].message
    client.chat.completions.create(model="demo", messages=[*QUESTION, message.model_dump(), *QUESTION], max_tokens=2)


def test_the_context_is_bounded_by_name(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="demo", prompt=[5] * 2000, max_tokens=1)
    assert refused.value.code == "context_length_exceeded" and "1024" in refused.value.message


def test_a_structure_may_have_a_thought_before_it(client):
    """As on the transformers engine, and the engine binds what follows."""
    schema = {"type": "object", "properties": {"answer": {"enum": [41, 42]}}, "required": ["answer"]}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema, "strict": True}}
    asked = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 300, "response_format": form}
    message = client.chat.completions.create(**asked).choices[0].message
    assert message.reasoning and json.loads(message.content)["answer"] in (41, 42)
    silent = {"chat_template_kwargs": {"enable_thinking": False}}
    message = client.chat.completions.create(**asked, extra_body=silent).choices[0].message
    assert not message.reasoning and json.loads(message.content)["answer"] in (41, 42)


def test_responses_in_the_background(client, service):
    asked = {"model": "demo", "input": "What is 17 + 25?", "temperature": 0, "background": True}
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    response_id = events[0].response.id
    done = client.responses.retrieve(response_id)
    assert done.status == "completed" and done.output_text == "42" and done.id == response_id
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "42"
    resumed = list(client.responses.retrieve(response_id, stream=True, starting_after=3))
    assert [event.to_dict() for event in resumed] == [event.to_dict() for event in events[4:]]
    endless = client.responses.create(**asked, max_output_tokens=900, store=True, extra_body={"ignore_eos": True})
    assert client.responses.cancel(endless.id).status == "cancelled"
    until(lambda: gauge_of(service) == 0, 60, "its slot is free")
    client.responses.delete(endless.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(endless.id)
    with pytest.raises(openai.BadRequestError, match="store"):
        client.responses.create(**asked, store=False)


def gauge_of(service):
    headers = {"authorization": f"Bearer {KEY}"}
    text = httpx.get(f"{service.url}/metrics", headers=headers, timeout=30).text
    found = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)
    assert found, "vLLM tells what runs"
    return float(found[1])
