"""What coding agents send is answered in the form and order that they read, by every engine.

Each file beside this one holds the requests of an agent, one conversation with tools' results, as its newest release
sent them to a server that answered with calls; texts are short ones of ours. They are sent again as they are, but for a
bound on the answer, and read by the SDKs as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

if TYPE_CHECKING:  # its types take a second, in every process that collects these tests
    import anthropic

__all__ = [
    "test_a_call_in_a_namespace",
    "test_a_custom_tools_call",
    "test_chat_agents_are_answered_in_their_order",
    "test_claude_code_is_answered_in_its_order",
    "test_codex_is_answered_in_its_order",
    "test_what_asks_for_nothing_is_harmless",
    "test_what_has_an_effect_that_nobody_has_is_refused",
]

AGENTS = {path.stem: json.loads(path.read_text())["requests"] for path in Path(__file__).parent.glob("*.json")}
MOST_TOKENS = 60


def _of(*names: str) -> Any:
    cases = [(name, number) for name in names for number in range(len(AGENTS[name]))]
    return pytest.mark.parametrize(("name", "number"), cases, ids=[f"{name}-{number}" for name, number in cases])


def _body(name: str, number: int, **fields: Any) -> dict[str, Any]:
    request = AGENTS[name][number]
    limit = "max_output_tokens" if request["path"].endswith("/responses") else "max_tokens"
    return {**request["body"], "temperature": 0, limit: MOST_TOKENS, **fields}


def _responses(client: openai.OpenAI, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[Any]:
    options: Any = {"headers": headers or {}}
    stream = client.post(
        "/responses",
        body=body,
        options=options,
        cast_to=ResponseStreamEvent,
        stream=True,
        stream_cls=openai.Stream[ResponseStreamEvent],
    )
    return list(stream)


def _check_order(events: list[Any]) -> list[Any]:
    """As Codex reads it: created, then each item from its beginning to its end, then the end of all, with usage."""
    assert events[0].type == "response.created"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete") and last.response.usage.total_tokens > 0
    done, open_id = [], None
    for event in events:
        if event.type == "response.output_item.added":
            assert open_id is None
            open_id = event.item.id
        elif event.type == "response.output_item.done":
            assert event.item.id == open_id
            done.append(event.item)
            open_id = None
        elif hasattr(event, "item_id"):
            assert event.item_id == open_id
    assert open_id is None and [item.type for item in done] == [item.type for item in last.response.output]
    return done


@_of("codex", "codex_apply_patch")
def test_codex_is_answered_in_its_order(client: openai.OpenAI, name: str, number: int) -> None:
    headers = AGENTS[name][number]["headers"]
    items = _check_order(_responses(client, _body(name, number), headers))
    assert items and {item.type for item in items} <= {"reasoning", "message", "function_call", "custom_tool_call"}


def test_a_custom_tools_call(client: openai.OpenAI) -> None:
    chosen = {"type": "custom", "name": "apply_patch"}
    events = _responses(client, _body("codex_apply_patch", 0, tool_choice=chosen, reasoning={"effort": "none"}))
    (call,) = _check_order(events)
    assert (call.type, call.name) == ("custom_tool_call", "apply_patch") and call.call_id
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    (ended,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == ended.input == call.input


def test_a_call_in_a_namespace(client: openai.OpenAI) -> None:
    body = _body("codex", 0, reasoning={"effort": "none"})
    functions = [tool for tool in body["tools"] if tool["type"] == "namespace"]
    namespace, function = functions[0]["name"], functions[0]["tools"][0]["name"]
    for choice in (f"{namespace}__{function}", function):
        events = _responses(client, {**body, "tool_choice": {"type": "function", "name": choice}})
        call = _check_order(events)[-1]
        assert (call.type, call.namespace, call.name) == ("function_call", namespace, function)
        added = [event.item for event in events if event.type == "response.output_item.added"][-1]
        assert (added.namespace, added.name) == (namespace, function)
        told = {**body, "stream": False, "tool_choice": {"type": "function", "name": choice}}
        whole: Any = client.post("/responses", body=told, cast_to=dict[str, Any])
        assert (whole["output"][-1]["namespace"], whole["output"][-1]["name"]) == (namespace, function)


def _messages(client: anthropic.Anthropic, path: str, body: dict[str, Any], headers: dict[str, str]) -> Iterator[Any]:
    import anthropic
    from anthropic.types import RawMessageStreamEvent

    options: Any = {"headers": {name: headers[name] for name in headers if name.startswith("anthropic")}}
    stream = client.post(
        path,
        body=body,
        options=options,
        cast_to=RawMessageStreamEvent,
        stream=True,
        stream_cls=anthropic.Stream[RawMessageStreamEvent],
    )
    yield from stream


def _check_blocks(events: list[Any]) -> None:
    """As Claude Code reads it: each block from its beginning to its end, then why the message ends."""
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    index, is_open = -1, False
    for event in events[1:-2]:
        if event.type == "content_block_start":
            index, is_open = index + 1, not is_open
            assert is_open
        elif event.type == "content_block_stop":
            assert is_open
            is_open = False
        if event.type != "ping":
            assert event.index == index
    ended = next(event for event in events if event.type == "message_delta")
    assert not is_open and ended.delta.stop_reason in ("end_turn", "max_tokens", "tool_use")
    assert ended.usage.output_tokens > 0


@_of("claude_code")
def test_claude_code_is_answered_in_its_order(messages: anthropic.Anthropic, name: str, number: int) -> None:
    request = AGENTS[name][number]
    _check_blocks(list(_messages(messages, request["path"], _body(name, number), request["headers"])))
    forced = _body(name, number, tool_choice={"type": "tool", "name": "Read"}, thinking={"type": "disabled"})
    events = list(_messages(messages, request["path"], {**forced, "max_tokens": 200}, request["headers"]))
    _check_blocks(events)
    begun = [event.content_block for event in events if event.type == "content_block_start"]
    assert [(block.type, block.name) for block in begun] == [("tool_use", "Read")]


@_of("aider", "cline", "opencode")
def test_chat_agents_are_answered_in_their_order(client: openai.OpenAI, name: str, number: int) -> None:
    """The role first, then what is said, then why it ends, once; then the usage, if it was asked for."""
    body = _body(name, number)
    chunks = list(
        client.post(
            "/chat/completions",
            body=body,
            cast_to=ChatCompletionChunk,
            stream=True,
            stream_cls=openai.Stream[ChatCompletionChunk],
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert len(reasons) == 1 and reasons[0] in ("stop", "length", "tool_calls")
    if "stream_options" in body:
        assert not chunks[-1].choices and chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0


def test_what_asks_for_nothing_is_harmless(messages: anthropic.Anthropic) -> None:
    """Among it a tool that is deferred: its name is read after a search has found it."""
    turns = [{"role": "user", "content": "Hi"}]
    tool = {"name": "add", "input_schema": {"type": "object"}, "eager_input_streaming": True, "type": "custom"}
    later = {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True}
    found = [
        *turns,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "add", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "content": [{"type": "tool_reference", "tool_name": "later"}],
                }
            ],
        },
    ]
    counts = []
    for fields in (
        {"messages": turns},
        {"messages": turns, "context_management": {"edits": []}, "mcp_servers": []},
        {"messages": turns, "tools": [tool]},
        {"messages": turns, "tools": [tool, later]},
        {"messages": found, "tools": [tool]},
        {"messages": found, "tools": [tool, later]},
    ):
        answer: Any = messages.post(
            "/v1/messages", body={"model": "demo", "max_tokens": 1, **fields}, cast_to=dict[str, Any]
        )
        told = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        counts.append(sum(answer["usage"].get(name) or 0 for name in told))
    assert counts[0] == counts[1] < counts[2] == counts[3]
    assert counts[4] < counts[5], "a tool that was found is shown"


def test_what_has_an_effect_that_nobody_has_is_refused(client: openai.OpenAI, messages: anthropic.Anthropic) -> None:
    import anthropic

    body = {"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
    for name, value in (
        ("context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}),
        ("mcp_servers", [{"type": "url", "url": "http://x", "name": "x"}]),
    ):
        with pytest.raises(anthropic.BadRequestError, match=f"'{name}'"):
            messages.post("/v1/messages", body={**body, name: value}, cast_to=dict[str, Any])
    asked = {"model": "demo", "input": "Hi", "max_output_tokens": 1}
    for kind in ("web_search", "code_interpreter", "local_shell", "tool_search"):
        with pytest.raises(openai.BadRequestError, match=f"no tool of type '{kind}'"):
            client.post("/responses", body={**asked, "tools": [{"type": kind}]}, cast_to=dict[str, Any])
