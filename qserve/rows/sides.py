"""Where a preference has its prompt, its better and its worse answers.

chosen, rejected                        TRL, OpenRLHF, UltraFeedback, Skywork, LLaMA-Factory, hh-rlhf; either may
                                        hold several (RewardBench 2, RM-Bench)
chosen_inputs, rejected_inputs          whole texts
messages, rejected_response             ms-swift: the conversation's last answer is the better one; also
                                        "rejected_message" (OpenPipe), and "rejected_messages", a whole conversation
input, preferred_output, …              OpenAI's preference format
response_1, response_2, preference_…    HelpSteer 2
response_0, response_1, better_…        PKU-SafeRLHF
response_j, response_k                  StackExchange paired: the first is the better one
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qserve.rows.conversation import CONVERSATIONS, QUESTIONS, conversation_of, lead_of
from qserve.rows.fields import Fields, RowError
from qserve.rows.turns import Turn, is_turn, messages_of, turns_of

__all__ = ["PAIRED", "Sides", "sides_of"]

PAIRED = (
    "chosen",
    "rejected",
    "rejected_response",
    "rejected_messages",
    "rejected_message",
    "chosen_inputs",
    "rejected_inputs",
    "preferred_output",
    "non_preferred_output",
    "better_response_id",
    "preference_strength",
    "response_j",
    "chosen_response",
    "chosen_messages",
    "winner",
)
"""Fields of which each says that a row is a preference."""
_REJECTED = ("rejected_response", "rejected_messages", "rejected_message")


class Sides(NamedTuple):
    """`lead`: what stands before the answers, where a field of its own says it. `better` and `worse` are one answer or
    several, each as the row has it: a text, a turn, turns."""

    lead: list[Turn] | None
    better: list[Any]
    worse: list[Any]
    with_tools: Fields
    """The row, or the object in it, that has the tools."""


def sides_of(fields: Fields) -> Sides | None:
    """None where the row is no preference. Raises RowError for half of one."""
    if not any(name in fields for name in PAIRED):
        return None
    if "chosen_inputs" in fields or "rejected_inputs" in fields:
        return _named(fields, "chosen_inputs", "rejected_inputs", has_lead=False)
    if "preferred_output" in fields or "non_preferred_output" in fields:
        return _openai(fields)
    for better in ("chosen_response", "chosen_messages"):
        if better in fields:
            return _named(fields, better, better.replace("chosen", "rejected"), has_lead=True)
    if "chosen" in fields or "rejected" in fields:
        return _named(fields, "chosen", "rejected", has_lead=True)
    if any(name in fields for name in _REJECTED):
        return _answered(fields)
    return _compared(fields)


def _named(fields: Fields, better: str, worse: str, *, has_lead: bool) -> Sides:
    if better not in fields or worse not in fields:
        raise fields.lacks(f"{better} and {worse}")
    chosen, rejected = fields.take(better), fields.take(worse)
    lead = _lead(fields, chosen) if has_lead else None
    if lead is None and isinstance(fields.peek("system"), str) and isinstance(chosen, list):
        lead = [Turn({"role": "system", "content": fields.take("system")})]
    return Sides(lead, _each(chosen), _each(rejected), fields)


def _lead(fields: Fields, chosen: Any) -> list[Turn] | None:
    """By a field of its own, or the conversation beside the answers, without an answer at its end."""
    held = next((name for name in CONVERSATIONS if name in fields), None)
    if any(name in fields for name in QUESTIONS):
        if held is not None and fields.peek(held) == chosen:  # ultrafeedback_binarized: the better one once more
            fields.take(held)
        return lead_of(fields)
    if held is None or (found := conversation_of(fields)) is None:
        return None
    turns = found[0]
    return turns[:-1] if turns[-1].role == "assistant" else turns


def _each(value: Any) -> list[Any]:
    """One answer (a text, a turn, turns), or the answers of a list of them."""
    if not isinstance(value, list | tuple) or not value or is_turn(value[0]):
        return [value]
    return list(value)


def _openai(fields: Fields) -> Sides:
    asked = fields.take("input")
    within = Fields(asked if isinstance(asked, Mapping) else {})
    found = turns_of(within.take("messages"), within)
    if found is None or "preferred_output" not in fields or "non_preferred_output" not in fields:
        raise fields.lacks("input with messages, preferred_output and non_preferred_output")
    better, worse = fields.take("preferred_output"), fields.take("non_preferred_output")
    return Sides(found, [better], [worse], within)


def _answered(fields: Fields) -> Sides:
    """The conversation's last answer against another."""
    name = next(name for name in _REJECTED if name in fields)
    found = conversation_of(fields)
    if found is None or found[0][-1].role != "assistant":
        raise RowError("needs a conversation that ends with the chosen answer", name)
    turns, rejected = found[0], fields.take(name)
    turn = rejected[0] if isinstance(rejected, list | tuple) and rejected else None
    if name == "rejected_messages" and isinstance(turn, Mapping) and turn.get("role") != "assistant":
        return Sides(None, [messages_of(turns)], [rejected], fields)
    return Sides(turns[:-1], [[turns[-1].message]], _each(rejected), fields)


def _compared(fields: Fields) -> Sides:
    """Two answers, and a field that says which is the better one."""
    if "response_j" in fields:
        names, is_first = ("response_j", "response_k"), True
    elif "winner" in fields:
        names, is_first = ("conversation_a", "conversation_b"), _says(fields, "winner", "model_a", "model_b")
    elif "better_response_id" in fields:
        names, is_first = ("response_0", "response_1"), _says(fields, "better_response_id", 0, 1)
    else:
        names, is_first = ("response_1", "response_2"), _is_stronger(fields)
    if any(name not in fields for name in names):
        raise fields.lacks(f"{' and '.join(names)}")
    first, second = (fields.take(name) for name in names)
    lead = None if names[0] == "conversation_a" else lead_of(fields)
    return Sides(lead, [first if is_first else second], [second if is_first else first], fields)


def _says(fields: Fields, name: str, first: Any, second: Any) -> bool:
    value = fields.take(name)
    if value not in (first, second) or isinstance(value, bool):
        raise RowError(f"is {value!r}; it must be {first!r} or {second!r}", name)
    return bool(value == first)


def _is_stronger(fields: Fields) -> bool:
    """HelpSteer 2: below zero the first is better."""
    strength = fields.take("preference_strength")
    if not isinstance(strength, int | float) or strength == 0:
        raise RowError(f"is {strength!r}: neither answer is preferred", "preference_strength")
    return strength < 0
