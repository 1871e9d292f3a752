"""One row of the formats that trainers have, as TRL's conversational format.

    TRL            {"messages"}, {"prompt", "completion"}, {"prompt", "chosen", "rejected"}, {"prompt"}, {"text"}
    OpenRLHF       {"input", "output"}, {"prompt", "chosen", "rejected"} of strings or messages
    ms-swift       {"messages", "rejected_response"}, {"query", "response", "history", "system"}
    LLaMA-Factory  {"instruction", "input", "output", "system", "history"}, {"conversations": [{"from", "value"}]},
                   both with "chosen" and "rejected"
    case A         {"chosen_inputs", "rejected_inputs"}: whole texts

`qserve.rows` reads them; what stands here is what each of TRL's trainers takes. `tools` and `chat_template_kwargs` are
carried to the chat template by TRL. A row that is none of them raises RowError, which says what was seen and what is
missing. `unread` counts the fields that nothing reads.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

from qserve.rows import preference
from qserve.rows.conversation import CONVERSATIONS, conversation_of, lead_of
from qserve.rows.fields import Fields, RowError
from qserve.rows.marks import row_is_masked
from qserve.rows.tools import template_fields_of
from qserve.rows.turns import Turn, messages_of

__all__ = [
    "REFERENCES",
    "TEMPLATE_FIELDS",
    "Row",
    "RowError",
    "Tie",
    "answered_of",
    "answers_of",
    "asked_of",
    "preferences_of",
    "prompt_of",
]

Row = dict[str, Any]

TEMPLATE_FIELDS: dict[str, Any] = {"tools": None, "chat_template_kwargs": {}}
"""Columns that the chat template is given with the turns, and what they hold of a row that has none."""
REFERENCES = ("references", "reference", "answer", "solution", "ground_truth", "label", "target")
"""What a rule compares a rollout with, under the names that data sets have for it."""
_MARGINS = ("margin", "score_diff")


class Tie(RowError):
    """A pair whose sides say the same."""


def preferences_of(row: Mapping[str, Any], unread: Counter[str] | None = None) -> list[Row]:
    """`{"prompt", "chosen", "rejected"}` as messages, or `{"chosen", "rejected"}` as whole texts; `margin` if given.

    One for each better answer with each worse one.
    """
    fields = Fields(row)
    found = preference.preference_of(fields)
    if found is None:
        raise fields.lacks("chosen and rejected")
    if found.is_tie:
        raise Tie("chosen and rejected are the same (a tie), so there is nothing to learn from them")
    given = fields.take(*(name for name in _MARGINS if isinstance(row.get(name), int | float)))
    margin = {} if given is None else {"margin": float(given)}
    _count(fields, unread)
    prompt = {} if found.prompt is None else {"prompt": found.prompt}
    return [
        {**prompt, "chosen": better, "rejected": worse, **margin, **found.template_fields}
        for better, worse in itertools.product(found.chosen, found.rejected)
    ]


def answers_of(row: Mapping[str, Any], unread: Counter[str] | None = None) -> list[Row]:
    """`{"prompt", "completion"}` of messages, one for each of the assistant's turns that is trained on; or one
    `{"text"}`. Empty where every answer is left out of the loss.
    """
    fields = Fields(row)
    found = conversation_of(fields)
    if found is None:
        made = [_text(fields)]
    else:
        turns, num_given = found
        made = _answers(turns, num_given, template_fields_of(fields))
    made = [] if row_is_masked(fields) else made
    _count(fields, unread)
    return made


def _text(fields: Fields) -> Row:
    if not isinstance(text := fields.peek("text"), str):
        raise fields.lacks("messages, or conversations, or prompt with completion, or instruction with output")
    if not text.strip():
        raise RowError("is an empty text", "text")
    return {"text": fields.take("text")}


def _answers(turns: list[Turn], num_given: int, template_fields: Row) -> list[Row]:
    places = [place for place, turn in enumerate(turns) if place >= max(1, num_given) and turn.role == "assistant"]
    if not places:
        raise RowError("no answer of the assistant after a user's turn")
    trained = [place for place in places if not turns[place].is_masked]
    messages = messages_of(turns)
    if any(_is_empty(messages[place]) for place in trained):
        raise RowError("an answer is empty: it has no content and calls no tool")
    return [{"prompt": messages[:place], "completion": [messages[place]], **template_fields} for place in trained]


def _is_empty(message: Mapping[str, Any]) -> bool:
    return not message["content"].strip() and not any(name in message for name in ("tool_calls", "reasoning_content"))


def answered_of(fields: Fields) -> Row:
    """`{"prompt", "response"}` of messages: a conversation that ends with an answer."""
    found = conversation_of(fields)
    turns = messages_of(found[0]) if found is not None else []
    if len(turns) < 2 or turns[-1]["role"] != "assistant" or _is_empty(turns[-1]):
        raise fields.lacks("a prompt with a response, or messages that end with the assistant's")
    return {"prompt": turns[:-1], "response": turns[-1:], **template_fields_of(fields)}


def prompt_of(row: Mapping[str, Any], unread: Counter[str] | None = None) -> Row:
    """`{"prompt"}` of messages, with `references` where the row holds what an answer is compared with."""
    fields = Fields(row)
    prompt = asked_of(fields)
    if template_fields := template_fields_of(fields):
        raise RowError(
            f"has {' and '.join(template_fields)}, which TRL's GRPO takes per run, not per row; leave them out"
        )
    named = fields.take(*(name for name in REFERENCES if isinstance(row.get(name), str | int | float | list)))
    if isinstance(named, list):
        named = next((one for one in named if isinstance(one, str)), None)
    _count(fields, unread)
    return {"prompt": prompt, "references": "" if named is None else str(named)}


def asked_of(fields: Fields) -> list[dict[str, Any]]:
    """The messages before an answer: up to the last turn that is not the assistant's."""
    held = any(name in fields for name in CONVERSATIONS)
    found = conversation_of(fields) if held else None
    turns = found[0] if found is not None else lead_of(fields)
    if turns is None:
        raise fields.lacks("prompt, question, instruction, query or messages")
    while turns and turns[-1].role == "assistant":
        turns = turns[:-1]
    if not turns:
        raise RowError("the prompt has no user's turn")
    return messages_of(turns)


def _count(fields: Fields, unread: Counter[str] | None) -> None:
    if unread is not None:
        unread.update(fields.unread)
