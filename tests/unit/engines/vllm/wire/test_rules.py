"""What vLLM would take and not follow is refused before it gets there, on each of its routes."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.engines.vllm.wire.rules import check_structure, check_tools
from qserve.wire.errors import ApiError

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def tool(path: str, name: Any = "f", **fields: Any) -> dict[str, Any]:
    if path == CHAT:
        return {"type": "function", "function": {"name": name}, **fields}
    return {"name": name, **({"type": "function"} if path == RESPONSES else {}), **fields}


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, f"{CHAT}/batch"])
@pytest.mark.parametrize(
    ("tools", "says"),
    [
        (lambda path: [tool(path, type="web_search")], "no tool of type 'web_search'"),
        (lambda path: [tool(path, type="web_search_20250305")], "describe functions"),
        (lambda path: [tool(path, "a"), tool(path, "b"), tool(path, "a")], "two functions named 'a'"),
        (lambda path: [tool(path, "no spaces")], "must be a name"),
        (lambda path: [tool(path, "")], "must be a name"),
        (lambda path: [tool(path, None)], "must be a name"),
        (lambda path: [tool(path), "f"], r"'tools\[1\]' must be an object"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_tools_that_nobody_can_call_by_name_are_refused(path: str, tools: Any, says: str) -> None:
    given = tools(path.removesuffix("/batch"))
    with pytest.raises(ApiError, match=says) as refused:
        check_tools(path, {"tools": given})
    assert (refused.value.status, refused.value.param) == (400, "tools")


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_tools_of_the_clients_own_pass(path: str) -> None:
    check_tools(path, {"tools": [tool(path, "get_weather"), tool(path, "a.b:c-d")]})
    check_tools(path, {"tools": None})
    check_tools(MESSAGES, {"tools": [tool(MESSAGES, type="custom")]})


def test_a_chat_s_tool_says_its_type() -> None:
    with pytest.raises(ApiError, match="without a type"):
        check_tools(CHAT, {"tools": [{"function": {"name": "f"}}]})


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a"}},
        {"text": {"format": {"type": "json_schema"}}},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_structured_answer_must_be_able_to_end(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="'ignore_eos' does not go with"):
        check_structure({**fields, "ignore_eos": True})
    check_structure(fields)
    check_structure({**fields, "ignore_eos": False})


def test_of_sampling_params_too_and_free_text_may_go_on() -> None:
    with pytest.raises(ApiError, match="structure"):
        check_structure({"sampling_params": {"ignore_eos": True, "structured_outputs": {"json": {}}}})
    check_structure({"ignore_eos": True, "response_format": {"type": "text"}, "tool_choice": "auto", "text": {}})
