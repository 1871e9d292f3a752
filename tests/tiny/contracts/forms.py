"""Forms that clients of other servers send, and what vLLM's own clients ask for: the same over every engine.

A folder of tests with fixtures `client` (openai's, of a service of the demo) and `messages` (Anthropic's) takes them by
`from tests.tiny.contracts.forms import *`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    import anthropic

__all__ = [
    "test_a_format_in_anthropics_older_word",
    "test_a_format_in_hugging_faces_words",
    "test_a_tool_choice_without_a_type",
    "test_allowed_tools_are_those_that_are_called",
    "test_allowed_tools_of_a_response",
    "test_another_choice_of_tools_is_refused",
    "test_ids_of_tokens",
    "test_logprobs_of_a_prompt",
    "test_min_tokens_hold_against_whatever_ends_an_answer",
    "test_turns_of_other_servers_are_taken",
    "test_what_is_not_asked_of_tokens_is_null",
]

QUESTION: Any = [{"role": "user", "content": "What is 17 + 25?"}]
PARAMETERS = {
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {"a": {"enum": [17, 25]}},
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": PARAMETERS}}
    for name in ("calculator", "weather", "clock")
]
FUNCTION: Any = {"type": "function", "name": "f", "parameters": PARAMETERS}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 60, **fields}
    )


def allowed(mode: str, *names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("name", ["weather", "clock"])
def test_allowed_tools_are_those_that_are_called(client: openai.OpenAI, name: str) -> None:
    """The demo would call its calculator; the model sees all tools whichever are allowed."""
    answer = ask(client, tools=TOOLS, tool_choice=allowed("required", name))
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == [name]
    plain = ask(client, tools=TOOLS, max_tokens=1)
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens
    free = ask(client, tools=TOOLS, tool_choice=allowed("auto", name))
    assert all(call.function.name == name for call in free.choices[0].message.tool_calls or ())


def test_allowed_tools_of_a_response(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}
    answer = client.responses.create(
        model="demo", input="What is 17 + 25?", tools=tools, tool_choice=choice, temperature=0, max_output_tokens=60
    )
    assert [item.name for item in answer.output if item.type == "function_call"] == ["clock"]


def test_another_choice_of_tools_is_refused(client: openai.OpenAI) -> None:
    for choice in ({"type": "mcp", "server_label": "x"}, allowed("required", "another"), {"type": "allowed_tools"}):
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            ask(client, tools=TOOLS, tool_choice=choice)
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.responses.create(model="demo", input="x", tools=[FUNCTION], tool_choice={"type": "file_search"})


def test_a_tool_choice_without_a_type(client: openai.OpenAI) -> None:
    choice: Any = {"function": {"name": "weather"}}
    calls = ask(client, tools=TOOLS, tool_choice=choice).choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["weather"]


def test_a_format_in_hugging_faces_words(client: openai.OpenAI) -> None:
    for kind in ("json", "json_object"):
        answer = ask(client, response_format={"type": kind, "value": SCHEMA})
        assert json.loads(answer.choices[0].message.content)["n"] in (1, 2)
    answer = ask(client, response_format={"type": "regex", "value": "(ab|cd){2}"})
    assert answer.choices[0].message.content in ("abab", "abcd", "cdab", "cdcd")


def test_a_format_in_anthropics_older_word(messages: anthropic.Anthropic) -> None:
    body: Any = {"temperature": 0, "output_format": {"type": "json_schema", "schema": SCHEMA}}
    answer = messages.messages.create(model="demo", messages=QUESTION, max_tokens=60, extra_body=body)
    assert json.loads(answer.content[-1].text)["n"] in (1, 2)


def test_turns_of_other_servers_are_taken(client: openai.OpenAI) -> None:
    for turn in (
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ):
        answer = ask(client, messages=[*QUESTION, turn, *QUESTION])
        assert answer.choices[0].finish_reason == "stop"


def test_ids_of_tokens(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    whole = ask(client, extra_body=extra)
    ids, prompt_ids = whole.choices[0].token_ids, whole.prompt_token_ids
    assert (len(ids), len(prompt_ids)) == (whole.usage.completion_tokens, whole.usage.prompt_tokens)
    parts = list(ask(client, extra_body=extra, stream=True))
    assert parts[0].prompt_token_ids == prompt_ids
    assert [one for part in parts for one in getattr(part.choices[0], "token_ids", None) or ()] == ids
    fields: Any = {
        "model": "demo",
        "prompt": ["One, two,", "x"],
        "temperature": 0,
        "max_tokens": 4,
        "extra_body": extra,
    }
    text = client.completions.create(**fields)
    parts = list(client.completions.create(**fields, stream=True))
    for choice in text.choices:
        mine = [part.choices[0] for part in parts if part.choices[0].index == choice.index]
        assert mine[0].prompt_token_ids == choice.prompt_token_ids
        assert not any(getattr(one, "prompt_token_ids", None) for one in mine[1:])
        assert [token_id for one in mine for token_id in one.token_ids or ()] == choice.token_ids
    assert sum(len(choice.token_ids) for choice in text.choices) == text.usage.completion_tokens


def test_logprobs_of_a_prompt(client: openai.OpenAI) -> None:
    extra = {"prompt_logprobs": 2, "return_token_ids": True}
    chat: Any = ask(client, extra_body=extra)
    text: Any = client.completions.create(
        model="demo", prompt=["One, two, 漢", "One"], max_tokens=1, temperature=0, extra_body=extra
    )
    for given, ids in [
        (chat.prompt_logprobs, chat.prompt_token_ids),
        *((choice.prompt_logprobs, choice.prompt_token_ids) for choice in text.choices),
    ]:
        assert given[0] is None and len(given) == len(ids)
        for token_id, entry in zip(ids[1:], given[1:], strict=True):
            own = entry[str(token_id)]
            assert next(iter(entry)) == str(token_id) and own.keys() == {"logprob", "rank", "decoded_token"}
            ranks = sorted(one["rank"] for one in entry.values())
            assert ranks[:2] == [1, 2] and len(entry) in (2, 3) and own["logprob"] <= 0
            by_rank = sorted(entry.values(), key=lambda one: one["rank"])
            assert [one["logprob"] for one in by_rank] == sorted((one["logprob"] for one in by_rank), reverse=True)
    assert "".join(
        entry[str(one)]["decoded_token"]
        for one, entry in zip(text.choices[0].prompt_token_ids[1:], text.choices[0].prompt_logprobs[1:], strict=True)
    ).endswith("漢")
    alone: Any = ask(client, max_tokens=1, extra_body={"prompt_logprobs": 0})
    assert all(len(entry) == 1 for entry in alone.prompt_logprobs[1:])
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
        ask(client, stream=True, extra_body={"prompt_logprobs": 1})


def test_min_tokens_hold_against_whatever_ends_an_answer(client: openai.OpenAI) -> None:
    first = ask(client, extra_body={"return_token_ids": True})
    text, token_id = first.choices[0].message.content[:1], first.choices[0].token_ids[0]
    for extra in ({}, {"stop": [text]}, {"stop_token_ids": [token_id]}):
        answer = ask(client, extra_body={"min_tokens": 20, **extra})
        assert answer.usage.completion_tokens >= 20, extra
    with pytest.raises(openai.BadRequestError, match="min_tokens"):
        ask(client, extra_body={"min_tokens": 61})


def test_what_is_not_asked_of_tokens_is_null(client: openai.OpenAI) -> None:
    """vLLM's clients read these of every answer that is not streamed."""
    chat, text = ask(client), client.completions.create(model="demo", prompt="One", max_tokens=2)
    whole, (choice,), (of_text,) = chat.model_extra or {}, chat.choices, text.choices
    assert {"prompt_logprobs": None, "prompt_token_ids": None}.items() <= whole.items()
    assert (choice.model_extra or {})["token_ids"] is None
    nulls = {"prompt_logprobs": None, "prompt_token_ids": None, "token_ids": None}
    assert nulls.items() <= (of_text.model_extra or {}).items()
