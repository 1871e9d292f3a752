"""Where a thought ends, how an answer ended, and what requests carry: on texts as servers send them."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.errors import UsageError
from qserve.evaluation.answers.limits import CHAT_ANSWER_TOKENS, THOUGHT_TOKENS, token_limit
from qserve.evaluation.answers.thinking import Thinking, cut_at_stops, resolve_thinking, split_answer
from qserve.evaluation.request import EvalRequest
from qserve.hub.chat_template import ThinkingTemplate, thinking_template

# The ends of published chat templates: what they write when an answer is to begin.
_HEAD = "{%- if messages %}{{ messages }}{%- endif %}"
QWEN3 = _HEAD + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}"
    "{%- endif %}{%- endif %}"
)
THINKING_2507 = _HEAD + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
INSTRUCT_2507 = _HEAD + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
QWEN35 = _HEAD + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}"
    "{%- else %}{{- '<think>\n' }}{%- endif %}{%- endif %}"
)
OFF_BY_DEFAULT = _HEAD + (
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is true %}{{- '<think>\n' }}"
    "{%- else %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (QWEN3, ThinkingTemplate(True, True, True, False)),
        (THINKING_2507, ThinkingTemplate(True, False, True, True)),
        (INSTRUCT_2507, ThinkingTemplate()),
        (QWEN35, ThinkingTemplate(True, True, True, True)),
        (OFF_BY_DEFAULT, ThinkingTemplate(True, True, False, True)),
        ("", ThinkingTemplate()),
    ],
    ids=["qwen3", "thinking-2507", "instruct-2507", "qwen3.5", "off by default", "none"],
)
def test_what_a_template_says_of_thinking(template: str, expected: ThinkingTemplate) -> None:
    assert thinking_template(template) == expected


@pytest.mark.parametrize(
    ("template", "wanted", "on", "told"),
    [
        (QWEN3, "auto", True, None),
        (QWEN3, "on", True, {"enable_thinking": True}),
        (QWEN3, "off", False, {"enable_thinking": False}),
        (THINKING_2507, "on", True, None),
        (INSTRUCT_2507, "auto", False, None),
        (INSTRUCT_2507, "off", False, None),
        (OFF_BY_DEFAULT, "auto", False, None),
        (OFF_BY_DEFAULT, "on", True, {"enable_thinking": True}),
    ],
)
def test_the_switch_of_the_template_is_used(template: str, wanted: str, on: bool, told: Any) -> None:
    thinking = resolve_thinking(wanted, thinking_template(template), "m")
    assert (thinking.on, thinking.template_kwargs) == (on, told)


@pytest.mark.parametrize(
    ("template", "wanted", "words"), [(INSTRUCT_2507, "on", "can't think"), (THINKING_2507, "off", "always thinks")]
)
def test_what_a_template_can_not_do_is_refused(template: str, wanted: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve_thinking(wanted, thinking_template(template), "m")


ON, OPENED = Thinking(on=True), Thinking(on=True, opens=True)


def chat(content: str | None, finish: str = "stop", **fields: str) -> dict[str, Any]:
    return {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **fields}}


@pytest.mark.parametrize(
    ("choice", "thinking", "thought", "text", "outcome"),
    [
        (chat("42"), ON, "", "42", "complete"),
        (chat("<think>\n1+1\n</think>\n\n42"), ON, "1+1", "42", "complete"),
        (chat("1+1\n</think>\n\n42"), OPENED, "1+1", "42", "complete"),
        (chat("42", reasoning_content="1+1"), ON, "1+1", "42", "complete"),
        (chat("42", reasoning="1+1"), ON, "1+1", "42", "complete"),
        (chat("<think>\nnever ends", "length"), ON, "never ends", "", "truncated"),
        (chat("never ends", "length"), OPENED, "never ends", "", "truncated"),
        (chat(None, "length", reasoning_content="never ends"), ON, "never ends", "", "truncated"),
        (chat("<think>\n1+1\n</think>\n\nthe answer is", "length"), ON, "1+1", "the answer is", "truncated"),
        (chat(None, reasoning_content="thought only"), ON, "thought only", "", "empty"),
        (chat("<think>\n1+1\n</think>\n\n"), ON, "1+1", "", "empty"),
        (chat(None), ON, "", "", "null"),
        (chat("a </think> b </think> c"), ON, "a </think> b", " c", "complete"),
        (
            {"index": 0, "finish_reason": "stop", "text": "<think>x</think>y"},
            Thinking(is_split=False),
            "",
            "<think>x</think>y",
            "complete",
        ),
    ],
)
def test_the_answer_is_what_follows_the_thought(
    choice: dict[str, Any], thinking: Thinking, thought: str, text: str, outcome: str
) -> None:
    answer = split_answer(choice, thinking, 7)
    assert (answer.thought, answer.text, answer.outcome, answer.num_tokens) == (thought, text, outcome, 7)


def test_stop_strings_end_the_answer_and_not_the_thought() -> None:
    assert cut_at_stops("42\n\nQuestion: what", ("Question:", "\n\n")) == "42"
    assert cut_at_stops("42", ("", "x")) == "42"


def test_room_for_thought_and_answer() -> None:
    chat_request = EvalRequest(("t",), chat=True)
    assert token_limit(chat_request, ON, 256, 1000, 40_960) == THOUGHT_TOKENS + 256
    assert token_limit(chat_request, ON, None, 1000, 262_144) == THOUGHT_TOKENS + CHAT_ANSWER_TOKENS
    assert token_limit(EvalRequest(("t",), chat=True, thinking_budget=1000), ON, 256, 100, 40_960) == 1256
    assert token_limit(EvalRequest(("t",), max_gen_toks=77), ON, 256, 100, 40_960) == 77
    assert token_limit(chat_request, Thinking(), 64, 100, 40_960) == 64
    assert token_limit(EvalRequest(("t",)), Thinking(), None, 100, 40_960) == 256


def test_where_that_much_may_not_fit_the_server_says_what_is_left() -> None:
    assert token_limit(EvalRequest(("t",), chat=True), ON, 256, 1000, 2048) is None
