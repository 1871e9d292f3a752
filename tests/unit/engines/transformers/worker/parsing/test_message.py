"""From text to thoughts, content and calls: the same however the text is cut into pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.worker.parsing.hermes import HermesCall
from qserve.engines.transformers.worker.parsing.message import MessageReader, MessageWriter, ReadingRules
from qserve.engines.transformers.worker.parsing.qwen3_coder import Qwen3CoderCall

SCHEMA = {
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "id": {"type": ["string", "null"]},
        "where": {"type": "object"},
        "unit": {"enum": ["C", "F"]},
    }
}
HERMES = ReadingRules(thinks=True, new_block=HermesCall)
CODER = ReadingRules(thinks=True, new_block=lambda: Qwen3CoderCall({"weather": SCHEMA}))
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo \\"</tool_call>\\" {", "days": 3}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    '<parameter=where>\n{"a": [1]}\n</parameter>\n<parameter=unit>\nC\n</parameter>\n<parameter=id>\n12\n</parameter>\n'
    "</function>\n</tool_call>"
)


def read(rules: ReadingRules, pieces: list[str]) -> dict[str, Any]:
    """The message, whose deltas add up to it."""
    reader, writer = MessageReader(rules), MessageWriter(thinks=True)
    deltas = [writer.delta(reader.push(piece)) for piece in pieces]
    deltas.append(writer.delta(reader.flush()))
    message = writer.message()
    assert "".join(delta.get("content", "") for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning", "") for delta in deltas) == (message["reasoning"] or "")
    for delta in deltas:
        indices = [call["index"] for call in delta.get("tool_calls", ())]
        assert indices == sorted(set(indices)), "clients take a second entry of a chunk for another call"
    arguments: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        arguments[call["index"]] = arguments.get(call["index"], "") + call["function"]["arguments"]
    assert list(arguments.values()) == [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    return message


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (one["function"]["name"], json.loads(one["function"]["arguments"])) for one in message.get("tool_calls", ())
    ]


@st.composite
def cut(draw: Callable[..., Any], text: str) -> list[str]:
    """The text in pieces of any length."""
    places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=60)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(
    ("rules", "text", "thought", "content", "expected"),
    [
        (HERMES, "Hello", None, "Hello", []),
        (HERMES, "<think>\nA\n\nB\n</think>\n\nHello", "A\n\nB", "Hello", []),
        (HERMES, "<think>\n\n</think>\n\nHello", None, "Hello", []),
        (HERMES, "a <think> b", None, "a <think> b", []),
        (HERMES, f"Wait.\n{CALL}", None, "Wait.", [("weather", {"city": 'Oslo "</tool_call>" {', "days": 3})]),
        (
            HERMES,
            f"<think>\nx\n</think>\n\n{CALL}\n{CALL}",
            "x",
            None,
            [("weather", {"city": 'Oslo "</tool_call>" {', "days": 3})] * 2,
        ),
        (HERMES, f"<think>\nx\n{CALL}", "x", None, [("weather", {"city": 'Oslo "</tool_call>" {', "days": 3})]),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', None, None, [("f", {"a": 1})]),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', None, None, [("f", {})]),
        (HERMES, "<tool_call>nothing</tool_call> after", None, "<tool_call>nothing</tool_call> after", []),
        (HERMES, "1 < 2 <tool", None, "1 < 2 <tool", []),
        (
            CODER,
            XML,
            None,
            None,
            [("weather", {"city": "Oslo", "days": 3, "where": {"a": [1]}, "unit": "C", "id": "12"})],
        ),
        (CODER, "<tool_call>\n<function=weather>\n</function>\n</tool_call>", None, None, [("weather", {})]),
        (
            CODER,
            "See\n" + XML.replace("Oslo", "a\n</tool_call>\nb"),
            None,
            "See",
            [("weather", {"city": "a\n</tool_call>\nb", "days": 3, "where": {"a": [1]}, "unit": "C", "id": "12"})],
        ),
        (
            CODER,
            XML.replace("Oslo", "a</parameter>b </tool_call>"),
            None,
            None,
            [
                (
                    "weather",
                    {"city": "a</parameter>b </tool_call>", "days": 3, "where": {"a": [1]}, "unit": "C", "id": "12"},
                )
            ],
        ),
        (
            CODER,
            XML.replace("Oslo", "").replace("\n</function>", ""),
            None,
            None,
            [("weather", {"city": "", "days": 3, "where": {"a": [1]}, "unit": "C", "id": "12"})],
        ),
        (
            CODER,
            "<tool_call><function=weather><parameter=days>3</parameter></function></tool_call>",
            None,
            None,
            [("weather", {"days": 3})],
        ),
        (
            CODER,
            "<tool_call><function=weather></parameter>\n<parameter=days>3</parameter></tool_call>",
            None,
            None,
            [("weather", {})],
        ),
    ],
)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_it_reads_the_same_however_it_is_cut(
    rules: ReadingRules, text: str, thought: str | None, content: str | None, expected: list[Any], data: st.DataObject
) -> None:
    message = read(rules, data.draw(cut(text)))
    assert message["reasoning"] == message["reasoning_content"] == thought
    assert message["content"] == content
    assert calls(message) == expected


def test_a_prompt_may_end_within_the_thought() -> None:
    message = read(ReadingRules(thinks=True, within_thought=True), ["\nso", " far\n</th", "ink>\n\nYes"])
    assert (message["reasoning"], message["content"]) == ("so far", "Yes")


def test_a_thought_that_is_cut_off_is_no_content() -> None:
    message = read(HERMES, ["<think>\nso far"])
    assert (message["reasoning"], message["content"]) == ("so far", "")


def test_a_call_that_is_cut_off_keeps_what_it_has() -> None:
    message = read(HERMES, ['<tool_call>\n{"name": "f", "arguments": {"a": "b'])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "b'}


def test_without_tools_a_call_is_text() -> None:
    assert read(ReadingRules(thinks=True), [CALL])["content"] == CALL


def test_hidden_thoughts_are_in_no_delta() -> None:
    reader, writer = MessageReader(HERMES), MessageWriter(thinks=True, shows_thoughts=False)
    assert writer.delta(reader.push("<think>\nx\n</think>\n\nYes")) == {"content": "Yes"}
    assert writer.message()["reasoning"] is None
