"""Agents' tools and fields: what the model is shown of them, what comes back, and what vLLM is given."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.engines.vllm.wire.agents import as_vllm_reads
from qserve.engines.vllm.wire.rules import check_tools
from qserve.wire.dialects.custom_input import CustomInput
from qserve.wire.dialects.messages import MessagesRequest
from qserve.wire.dialects.responses import ResponsesRequest
from qserve.wire.dialects.responses_answer import ResponsesAnswer
from qserve.wire.dialects.responses_tools import custom_arguments
from qserve.wire.errors import ApiError

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}}
NAMESPACE = {"type": "namespace", "name": "ns", "description": "d", "tools": [FUNCTION, {**PATCH, "name": "p"}]}
SEARCH = {"type": "web_search", "external_web_access": False}


def request(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.parse(json.dumps({"model": "m", "input": "x", **fields}).encode())


def test_what_the_model_is_shown() -> None:
    asked = request(tools=[FUNCTION, PATCH, NAMESPACE, SEARCH])
    shown = [tool["function"] for tool in asked.to_chat()["tools"]]
    assert [function["name"] for function in shown] == ["f", "patch", "ns__f", "ns__p"]
    assert shown[1]["parameters"]["required"] == ["input"] and 'start: "a"' in shown[1]["description"]
    assert asked.larks == {"patch": 'start: "a"', "ns__p": 'start: "a"'}
    assert [tool["type"] for tool in asked.echo()["tools"]] == ["function", "custom", "namespace"], "as it was offered"


def test_an_expression_is_held_as_a_pattern() -> None:
    tool = {**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "a|b"}}
    (function,) = request(tools=[tool]).to_chat()["tools"]
    assert function["function"]["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:a|b)$"}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "patch"}, "patch"),
        ({"type": "function", "name": "ns__p"}, "ns__p"),
        ({"type": "custom", "name": "p"}, "ns__p"),
        ({"type": "function", "name": "f", "namespace": "ns"}, "ns__f"),
        ({"type": "function", "name": "f"}, "f"),
        ({"type": "custom", "name": "p", "namespace": "other"}, "other__p"),
    ],
)
def test_a_tool_is_chosen_by_either_name(choice: dict[str, Any], name: str) -> None:
    chat = request(tools=[FUNCTION, PATCH, NAMESPACE], tool_choice=choice).to_chat()
    assert chat["tool_choice"]["function"]["name"] == name


def test_a_conversation_with_all_of_them() -> None:
    items = [
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
        {"type": "function_call", "call_id": "1", "namespace": "ns", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "id": "o", "call_id": "1", "output": [{"type": "input_text", "text": "y"}]},
        {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": 'a "b"\n', "status": "completed"},
        {"type": "custom_tool_call_output", "id": "o", "call_id": "2", "output": [{"type": "input_text", "text": "z"}]},
    ]
    messages = request(input=items).to_chat()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    calls = [message["tool_calls"][0]["function"] for message in messages if "tool_calls" in message]
    assert [call["name"] for call in calls] == ["ns__f", "patch"]
    assert json.loads(calls[1]["arguments"]) == {"input": 'a "b"\n'}
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["y", "z"]


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (SEARCH, "no tool of type 'web_search'"),
        ({"type": "mcp"}, "no tool of type 'mcp'"),
        ({**FUNCTION, "defer_loading": True}, "defer_loading"),
        ({**NAMESPACE, "tools": [{"type": "mcp"}]}, "no tool of type 'mcp'"),
        ({**PATCH, "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}, "'lark' or 'regex'"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_nobody_would_run_is_refused(tool: dict[str, Any], says: str) -> None:
    with pytest.raises(ApiError, match=says):
        request(tools=[tool])


@given(st.text(), st.lists(st.integers(0, 40)), st.booleans())
def test_a_text_comes_whole_however_its_arguments_are_cut(text: str, cuts: list[int], ascii_only: bool) -> None:
    text = text.encode(errors="replace").decode()
    written = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = [0, *sorted(min(cut, len(written)) for cut in cuts), len(written)]
    pieces = [written[start:end] for start, end in itertools.pairwise(places)]
    reader = CustomInput()
    said = [reader.push(piece) for piece in pieces]
    assert "".join(said) == reader.text == text == json.loads(custom_arguments(text))["input"]
    for one in said:
        one.encode()  # no half of a character


def events(tools: list[dict[str, Any]], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    answer = ResponsesAnswer(request(tools=tools).echo(), "1", 0, 1)
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    written = [
        *answer.begin(),
        *(event for delta in deltas for event in answer.push(delta)),
        *answer.end("stop", None, usage),
    ]
    return [json.loads(event.decode().partition("data: ")[2]) for event in written]


def call(name: str, *arguments: str) -> list[dict[str, Any]]:
    first = {"index": 0, "id": "c", "function": {"name": name, "arguments": arguments[0]}}
    return [
        {"tool_calls": [first]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": one}}]} for one in arguments[1:]),
    ]


def test_calls_come_back_in_the_clients_own_names() -> None:
    told = events([PATCH, NAMESPACE], *call("patch", '{"inp', 'ut": "a \\', 'n b"}'))
    assert [event["type"] for event in told][2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    item = told[-1]["response"]["output"][0]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "a \n b")
    item = events([NAMESPACE], *call("ns__f", "{}"))[-1]["response"]["output"][0]
    assert (item["type"], item["namespace"], item["name"], item["arguments"]) == ("function_call", "ns", "f", "{}")
    item = events([NAMESPACE], *call("ns__p", '{"input": ""}'))[-1]["response"]["output"][0]
    assert (item["type"], item["namespace"], item["name"], item["input"]) == ("custom_tool_call", "ns", "p", "")


def test_what_vllm_is_given_of_a_response() -> None:
    body = {
        "model": "m",
        "client_metadata": {"a": "b"},
        "tools": [PATCH, SEARCH, FUNCTION],
        "input": [
            {"type": "message", "id": "1", "role": "user", "content": "x"},
            {"role": "assistant", "id": "2", "content": "y"},
            {"type": "reasoning", "id": "3", "summary": [], "encrypted_content": "gAAA"},
            {"type": "reasoning", "id": "4", "content": [], "summary": [{}], "encrypted_content": "gAAA"},
            {"type": "custom_tool_call", "id": "5", "call_id": "c", "name": "p", "input": "", "status": "completed"},
        ],
    }
    given = as_vllm_reads(RESPONSES, body)
    assert given.keys() == {"model", "tools", "input"}
    assert [tool["type"] for tool in given["tools"]] == ["custom", "function"]
    assert given["tools"][0]["format"] == {"type": "text"} and 'start: "a"' in given["tools"][0]["description"]
    assert [item.get("id") for item in given["input"]] == [None, "2", "4", "5"]
    assert all("encrypted_content" not in item and "status" not in item for item in given["input"])
    alone = {"tools": [SEARCH]}
    with pytest.raises(ApiError, match="no tool of type 'web_search'"):
        check_tools(RESPONSES, as_vllm_reads(RESPONSES, alone))


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES, "/v1/chat/completions"])
@pytest.mark.parametrize(
    "body",
    [{}, {"input": 5, "tools": 5, "messages": 5}, {"tools": [5], "input": [5], "messages": [5]}, {"tools": [FUNCTION]}],
)
def test_other_bodies_stay_as_they_are(path: str, body: dict[str, Any]) -> None:
    assert as_vllm_reads(path, body) is body


def test_vllm_shows_no_custom_tool_of_a_namespace() -> None:
    with pytest.raises(ApiError, match="no tool of type 'custom'"):
        check_tools(RESPONSES, {"tools": [NAMESPACE]})
    check_tools(RESPONSES, {"tools": [PATCH, {**NAMESPACE, "tools": [FUNCTION]}]})
    for twice in ([PATCH, PATCH], [{**NAMESPACE, "tools": [FUNCTION]}, {**FUNCTION, "name": "ns__f"}]):
        with pytest.raises(ApiError, match="two functions named"):
            check_tools(RESPONSES, {"tools": twice})
    for broken in ({**NAMESPACE, "tools": 5}, {**NAMESPACE, "name": 5}, {**NAMESPACE, "tools": [{"type": "function"}]}):
        with pytest.raises(ApiError, match="must be a"):
            check_tools(RESPONSES, {"tools": [broken]})


TOOL = {"name": "a", "input_schema": {"type": "object"}}
LATER = {**TOOL, "name": "later", "defer_loading": True, "eager_input_streaming": True, "allowed_callers": ["direct"]}
FOUND = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": "later"}]}
    ],
}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a", "input": {}}]}


@pytest.mark.parametrize(("messages", "names"), [([], ["a"]), ([USED, FOUND], ["a", "later"])])
def test_a_deferred_tool_is_shown_once_it_was_found(messages: list[Any], names: list[str]) -> None:
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "x"}, *messages],
        "tools": [TOOL, LATER],
    }
    chat = MessagesRequest.parse(json.dumps(body).encode()).to_chat()
    given = as_vllm_reads(MESSAGES, body)
    assert [tool["function"]["name"] for tool in chat["tools"]] == [tool["name"] for tool in given["tools"]] == names
    assert all(tool.keys() == TOOL.keys() for tool in given["tools"])
    assert (chat["messages"][-1]["content"] == "later\n") == bool(messages)


def test_the_line_by_which_requests_are_billed_is_no_part_of_the_prompt() -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=ab12;"},
        {"type": "text", "text": "Hi"},
    ]
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "system": system}
    assert MessagesRequest.parse(json.dumps(body).encode()).to_chat()["messages"][0]["content"] == "Hi"


@pytest.mark.parametrize("odd", [[], {}])
def test_a_type_or_a_name_of_another_kind_is_no_fault_of_ours(odd: Any) -> None:
    with pytest.raises(ApiError, match="an input item of type"):
        request(input=[{"type": odd}])
    body = {"messages": [], "tools": [{"name": odd, "defer_loading": True}]}
    assert as_vllm_reads(MESSAGES, body)["tools"] == []
