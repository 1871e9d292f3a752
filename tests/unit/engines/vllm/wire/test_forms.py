"""Forms that vLLM does not take, in words that it follows; what the engine's own clients send stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qserve.engines.vllm.wire.forms import in_engine_words
from qserve.wire.errors import ApiError

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in "abc"]
PLAIN = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": None} for name in "abc"]
USER: dict[str, Any] = {"role": "user", "content": "x"}


def system(content: Any, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


def named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [system("a"), USER], "tools": TOOLS, "tool_choice": "auto"}),
        (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "a"}}}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (CHAT, {"messages": "no list", "tool_choice": 5}),
        (CHAT, {"messages": [system("a"), system([{"type": "image_url"}]), USER]}),
        (CHAT, {"messages": [system("a")]}),
        (RESPONSES, {"input": "x", "instructions": "a", "tool_choice": {"type": "function", "name": "a"}}),
        (RESPONSES, {"input": [USER, system("b")], "instructions": "a"}),
        (RESPONSES, {"tools": PLAIN, "tool_choice": {"type": "custom", "name": "a"}}),
        (MESSAGES, {"messages": [USER], "output_config": {"effort": "low"}, "output_format": None}),
    ],
)
def test_what_the_engine_takes_stays(path: str, body: dict[str, Any]) -> None:
    before = json.dumps(body)
    assert in_engine_words(path, body, takes_one_system=True) is body and json.dumps(body) == before


def test_allowed_tools_are_the_engines_and_all_the_templates() -> None:
    said = {"mode": "required", "tools": named("c", "a")}
    body = {
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": said},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    changed = in_engine_words(CHAT, body)
    assert changed["tools"] == [TOOLS[0], TOOLS[2]] and changed["tool_choice"] == "required"
    assert changed["chat_template_kwargs"] == {"enable_thinking": False, "tools": TOOLS}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "b"}]}
    changed = in_engine_words(RESPONSES, {"tools": PLAIN, "tool_choice": choice})
    assert changed["tools"] == [PLAIN[1]] and changed["tool_choice"] == "auto"
    assert changed["chat_template_kwargs"]["tools"] == TOOLS  # templates are written for chats


@pytest.mark.parametrize("name", [{"namespace": "n", "name": "b"}, {"name": "n__b"}, {"name": "b"}])
def test_allowed_tools_of_a_namespace(name: dict[str, str]) -> None:
    space = {"type": "namespace", "name": "n", "tools": PLAIN[1:]}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", **name}]}
    changed = in_engine_words(RESPONSES, {"tools": [PLAIN[0], space], "tool_choice": choice})
    assert changed["tools"] == [{**space, "tools": [PLAIN[1]]}]
    shown = [one["function"]["name"] for one in changed["chat_template_kwargs"]["tools"]]
    assert shown == ["a", "n__b", "n__c"]


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        (CHAT, {"type": "mcp"}),
        (CHAT, {}),
        (CHAT, {"type": "custom", "name": "a"}),
        (RESPONSES, {"type": "file_search"}),
        (RESPONSES, {"function": {"name": "a"}}),
        (CHAT, {"type": "allowed_tools"}),
        (CHAT, {"type": "allowed_tools", "mode": "auto", "tools": named("a")}),
        (CHAT, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named("z")}}),
        (CHAT, {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": named("a")}}),
        (CHAT, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}),
        (RESPONSES, {"type": "allowed_tools", "mode": "auto", "tools": named("a")}),
        (RESPONSES, {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "a", "namespace": "other"}]}),
    ],
)
def test_another_choice_is_refused(path: str, choice: Any) -> None:
    with pytest.raises(ApiError, match="'tool_choice") as refused:
        in_engine_words(path, {"tools": TOOLS if path == CHAT else PLAIN, "tool_choice": choice})
    assert (refused.value.status, refused.value.param) == (400, "tool_choice")


def test_forms_of_other_clients() -> None:
    of = lambda **given: in_engine_words(CHAT, {"response_format": given})  # noqa: E731
    assert of(type="json", value=SCHEMA) == of(type="json_object", value=SCHEMA)
    assert of(type="json", value=SCHEMA) == {"structured_outputs": {"json": SCHEMA}}
    assert of(type="regex", value="a+") == {"structured_outputs": {"regex": "a+"}}
    with pytest.raises(ApiError, match=r"response_format\.value"):
        of(type="json_schema", value=SCHEMA)
    choice = {"function": {"name": "a"}}
    assert in_engine_words(CHAT, {"tool_choice": choice})["tool_choice"] == {"type": "function", **choice}
    given = {"type": "json_schema", "schema": SCHEMA}
    changed = in_engine_words(MESSAGES, {"output_format": given, "output_config": {"effort": "low"}})
    assert changed == {"output_config": {"effort": "low", "format": given}}
    with pytest.raises(ApiError, match="differ"):
        in_engine_words(MESSAGES, {"output_format": given, "output_config": {"format": {"type": "json_schema"}}})


def test_system_turns_at_the_beginning_are_joined_where_the_template_takes_one() -> None:
    turns = [system("a"), system([{"type": "text", "text": "b"}], "developer"), USER, system("c")]
    chat: dict[str, Any] = {"messages": turns}
    assert in_engine_words(CHAT, chat) is chat
    changed = in_engine_words(CHAT, chat, takes_one_system=True)
    assert changed["messages"] == [system("a\n\nb"), USER, system("c")]
    body = {"instructions": "i", "input": [{"type": "message", **system("a", "developer")}, USER]}
    changed = in_engine_words(RESPONSES, body, takes_one_system=True)
    assert changed == {"instructions": "i\n\na", "input": [USER]}
    changed = in_engine_words(RESPONSES, {"input": [system("a"), system("b"), USER]}, takes_one_system=True)
    assert changed == {"instructions": "a\n\nb", "input": [USER]}
