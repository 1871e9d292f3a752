"""One preference in each form in which data sets have it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}]


@dataclass(frozen=True)
class Meant:
    """What every reader is to make of a row."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    tools: list[dict[str, Any]] | None = None

    @property
    def is_one_question(self) -> bool:
        return [turn["role"] for turn in self.prompt] == ["user"]

    @property
    def is_said(self) -> bool:
        """Whether both answers are a text each."""
        sides = (self.chosen, self.rejected)
        return all(len(side) == 1 and set(side[0]) == {"role", "content"} for side in sides)

    @property
    def beside(self) -> dict[str, Any]:
        return {"tools": self.tools} if self.tools else {}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(arguments: dict[str, Any]) -> Message:
    """As templates take it."""
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def openai(message: Message) -> Message:
    """As OpenAI writes it: arguments as text, no content beside calls."""
    if "tool_calls" not in message:
        return message
    functions = [one["function"] for one in message["tool_calls"]]
    written = [{**one, "arguments": json.dumps(one["arguments"])} for one in functions]
    calls = [{"id": "1", "type": "function", "function": one} for one in written]
    return {**message, "content": None, "tool_calls": calls}


def sharegpt(message: Message) -> Message:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    return {"from": names[message["role"]], "value": message["content"]}


# Texts that no reader takes for anything else: no blanks around them, no line breaks.
texts = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=12)
argument = st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 9) | texts, max_size=2)


@st.composite
def preferences(draw: st.DrawFn) -> Meant:
    """A prompt of some turns, and two answers that differ; now and then one calls a tool."""
    prompt = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 2))):
        prompt += [user(draw(texts)), answer(draw(texts))]
    prompt.append(user(draw(texts)))
    first, second = draw(st.lists(texts, min_size=2, max_size=2, unique=True))
    has_tools = draw(st.booleans())
    chosen = [call(draw(argument))] if has_tools and draw(st.booleans()) else [answer(first)]
    if has_tools and draw(st.booleans()) and "tool_calls" in chosen[0]:
        chosen += [{"role": "tool", "content": draw(texts)}, answer(first)]
    return Meant(prompt, chosen, [answer(second)], TOOLS if has_tools else None)


def _text(meant: Meant, side: list[Message]) -> str:
    names = {"user": "Human", "assistant": "Assistant"}
    return "".join(f"\n\n{names[turn['role']]}: {turn['content']}" for turn in (*meant.prompt, *side))


def _in_parts(message: Message) -> Message:
    if "tool_calls" in message:
        return message
    return {**message, "content": [{"type": "text", "value": message["content"]}], "loss_weight": 1.0}


Row = dict[str, Any]
FORMS: dict[str, tuple[Callable[[Meant], bool], Callable[[Meant], Row]]] = {
    "prompt and answers": (
        lambda one: True,
        lambda one: {"prompt": one.prompt, "chosen": one.chosen, "rejected": one.rejected, **one.beside},
    ),
    "whole conversations": (
        lambda one: True,
        lambda one: {"chosen": one.prompt + one.chosen, "rejected": one.prompt + one.rejected, **one.beside},
    ),
    "the prompt beside whole conversations": (
        lambda one: True,
        lambda one: {
            "prompt": next(turn["content"] for turn in one.prompt if turn["role"] == "user"),
            "chosen": one.prompt + one.chosen,
            "rejected": one.prompt + one.rejected,
            **one.beside,
        },
    ),
    "the prompt's turns beside whole conversations": (
        lambda one: True,
        lambda one: {
            "prompt": one.prompt,
            "chosen": one.prompt + one.chosen,
            "rejected": one.prompt + one.rejected,
            **one.beside,
        },
    ),
    "texts": (
        lambda one: one.is_one_question and one.is_said,
        lambda one: {
            "prompt": one.prompt[0]["content"],
            "chosen": one.chosen[0]["content"],
            "rejected": one.rejected[0]["content"],
            **one.beside,
        },
    ),
    "openai's messages": (
        lambda one: True,
        lambda one: {
            "prompt": one.prompt,
            "chosen": [openai(turn) for turn in one.chosen],
            "rejected": one.rejected,
            **one.beside,
        },
    ),
    "hh-rlhf": (
        lambda one: one.is_said and not one.tools and one.prompt[0]["role"] == "user",
        lambda one: {"chosen": _text(one, one.chosen), "rejected": _text(one, one.rejected)},
    ),
    "ms-swift": (
        lambda one: one.is_said,
        lambda one: {
            "messages": one.prompt + one.chosen,
            "rejected_response": one.rejected[0]["content"],
            **one.beside,
        },
    ),
    "llama-factory": (
        lambda one: one.is_said,
        lambda one: {
            "conversations": [sharegpt(turn) for turn in one.prompt],
            "chosen": sharegpt(one.chosen[0]),
            "rejected": sharegpt(one.rejected[0]),
            **one.beside,
        },
    ),
    "openai's preferences": (
        lambda one: True,
        lambda one: {
            "input": {"messages": one.prompt, **one.beside},
            "preferred_output": [openai(turn) for turn in one.chosen],
            "non_preferred_output": one.rejected,
        },
    ),
    "helpsteer 2": (
        lambda one: one.is_one_question and one.is_said,
        lambda one: {
            "prompt": one.prompt[0]["content"],
            "response_1": one.rejected[0]["content"],
            "response_2": one.chosen[0]["content"],
            "preference_strength": 2,
            **one.beside,
        },
    ),
    "llama-factory's newer format": (
        lambda one: True,
        lambda one: {
            "chosen_messages": [_in_parts(turn) for turn in one.prompt + one.chosen],
            "rejected_messages": [_in_parts(turn) for turn in one.prompt + one.rejected],
            **one.beside,
        },
    ),
    "chatbot arena": (
        lambda one: True,
        lambda one: {
            "conversation_a": one.prompt + one.chosen,
            "conversation_b": one.prompt + one.rejected,
            "winner": "model_a",
            **one.beside,
        },
    ),
}
