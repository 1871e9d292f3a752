"""One row of the formats that trainers have, as TRL's conversational format.

    TRL            {"messages"}, {"prompt", "completion"}, {"prompt", "chosen", "rejected"}, {"prompt"}, {"text"}
    OpenRLHF       {"input", "output"}, {"prompt", "chosen", "rejected"} of strings or messages
    ms-swift       {"messages", "rejected_response"}, {"query", "response", "history", "system"}
    LLaMA-Factory  {"instruction", "input", "output", "system", "history"}, {"conversations": [{"from", "value"}]},
                   both with "chosen" and "rejected"
    case A         {"chosen_inputs", "rejected_inputs"}: whole texts

Pure functions. A row that is none of them raises RowError, which says what was seen and what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Message", "Row", "RowError", "answers_of", "conversation_of", "preference_of", "prompt_of", "seen"]

Message = dict[str, str]
Row = dict[str, Any]

_ROLES = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
    "bot": "assistant", "model": "assistant", "tool": "tool", "observation": "tool", "function_call": "assistant",
}  # fmt: skip
_QUESTIONS = ("prompt", "instruction", "query", "question", "input")
_ANSWERS = ("completion", "output", "response", "answer")
_MARGINS = ("margin", "score_diff")
REFERENCES = ("references", "reference", "answer", "solution", "ground_truth", "label", "target")
"""What a rule compares a rollout with, under the names that data sets have for it."""


class RowError(ValueError):
    """A row that nobody can train on, in words."""


def preference_of(row: Mapping[str, Any]) -> Row:
    """`{"prompt", "chosen", "rejected"}` as messages, or `{"chosen", "rejected"}` as whole texts; `margin` if given."""
    given = next((row[name] for name in _MARGINS if isinstance(row.get(name), int | float)), None)
    margin = {} if given is None else {"margin": float(given)}
    if "chosen_inputs" in row:
        return {"chosen": _text(row, "chosen_inputs"), "rejected": _text(row, "rejected_inputs"), **margin}
    chosen, rejected = _sides(row)
    prompt = _lead(row, required=False)
    if prompt is None and isinstance(chosen, str) and isinstance(rejected, str):
        if not chosen.strip() or not rejected.strip():
            raise RowError("chosen or rejected is an empty text")
        _differ(chosen, rejected)
        return {"chosen": chosen, "rejected": rejected, **margin}
    first, second = _answer(chosen, "chosen"), _answer(rejected, "rejected")
    if prompt is None:
        prompt, first, second = _shared(first, second)
    _differ(first, second)
    return {"prompt": prompt, "chosen": first, "rejected": second, **margin}


def answers_of(row: Mapping[str, Any]) -> list[Row]:
    """`{"prompt", "completion"}` of messages, one for each of the assistant's turns; or one `{"text"}`."""
    turns = conversation_of(row)
    if turns is None:
        if isinstance(row.get("text"), str):
            if not row["text"].strip():
                raise RowError("text is empty")
            return [{"text": row["text"]}]
        raise RowError(seen(row, "messages, conversations, prompt with completion, or instruction with output"))
    places = [index for index, turn in enumerate(turns) if turn["role"] == "assistant" and index]
    if not places:
        raise RowError("no answer of the assistant after a user's turn")
    return [{"prompt": turns[:index], "completion": [turns[index]]} for index in places]


def prompt_of(row: Mapping[str, Any]) -> Row:
    """`{"prompt"}` of messages, with `references` where the row holds what an answer is compared with."""
    prompt = _lead(row, required=True)
    assert prompt is not None
    while prompt and prompt[-1]["role"] == "assistant":
        prompt = prompt[:-1]
    if not prompt:
        raise RowError("the prompt has no user's turn")
    named = next((row[name] for name in REFERENCES if isinstance(row.get(name), str | int | float | list)), None)
    if isinstance(named, list):
        named = next((one for one in named if isinstance(one, str)), None)
    return {"prompt": prompt, "references": "" if named is None else str(named)}


def _sides(row: Mapping[str, Any]) -> tuple[Any, Any]:
    if "chosen" in row and "rejected" in row:
        return row["chosen"], row["rejected"]
    for name in ("rejected_response", "rejected_messages"):
        if name in row:  # ms-swift: the conversation's last answer is the chosen one
            turns = conversation_of(row)
            if turns is None or turns[-1]["role"] != "assistant":
                raise RowError(f"{name} without a conversation that ends with the chosen answer")
            return turns[-1]["content"], row[name]
    raise RowError(seen(row, "chosen and rejected"))


def _lead(row: Mapping[str, Any], *, required: bool) -> list[Message] | None:
    """What stands before the answer."""
    for name in ("messages", "conversations", "conversation"):
        turns = _messages(row.get(name))
        if turns is not None:
            return turns[:-1] if turns[-1]["role"] == "assistant" else turns
    asked = next((row[name] for name in _QUESTIONS if name in row), None)
    turns = _messages(asked)
    if turns is not None:
        return turns
    if isinstance(asked, str):
        extra = row.get("input") if "instruction" in row else None
        text = f"{asked}\n{extra}" if isinstance(extra, str) and extra else asked
        if not text.strip():
            raise RowError("the prompt is empty")
        return [*_before(row), {"role": "user", "content": text}]
    if required:
        raise RowError(seen(row, "prompt, question, instruction, query or messages"))
    return None


def _before(row: Mapping[str, Any]) -> list[Message]:
    """System prompt and earlier turns."""
    turns: list[Message] = []
    if isinstance(row.get("system"), str) and row["system"]:
        turns.append({"role": "system", "content": row["system"]})
    for pair in row.get("history") or ():
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(one, str) for one in pair):
            raise RowError("history is a list of [question, answer]")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return turns


def conversation_of(row: Mapping[str, Any]) -> list[Message] | None:
    """All turns, the answer last; None where the row holds none. Raises RowError for turns that are none."""
    for name in ("messages", "conversations", "conversation"):
        turns = _messages(row.get(name))
        if turns is not None:
            return turns if turns[0]["role"] == "system" else [*_before(row), *turns]
    answer = next((row[name] for name in _ANSWERS if name in row), None)
    if answer is None:
        return None
    lead = _lead(row, required=False)
    return None if lead is None else [*lead, *_answer(answer, "the answer")]


def _answer(value: Any, name: str) -> list[Message]:
    if isinstance(value, str):
        if not value.strip():
            raise RowError(f"{name} is an empty text")
        return [{"role": "assistant", "content": value}]
    turns = _messages([value] if isinstance(value, Mapping) else value)
    if turns is None or turns[-1]["role"] != "assistant":
        raise RowError(f"{name} is a text, or messages that end with the assistant's")
    return turns


def _messages(value: Any) -> list[Message] | None:
    """Of {"role", "content"} or {"from", "value"}; None where it is not a list of them."""
    if not isinstance(value, list) or not value:
        return None
    turns = []
    for one in value:
        if not isinstance(one, Mapping):
            return None
        role, content = one.get("role", one.get("from")), one.get("content", one.get("value"))
        if role is None:
            return None
        if role not in _ROLES:
            raise RowError(f"the role {role!r} is none of {', '.join(_ROLES)}")
        if not isinstance(content, str):
            raise RowError(f"the content of a turn is a text; found {type(content).__name__}")
        turns.append({"role": _ROLES[role], "content": content})
    return turns


def _shared(first: list[Message], second: list[Message]) -> tuple[list[Message], list[Message], list[Message]]:
    """Two whole conversations as what they share, and what each says then."""
    count = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    if count == 0:
        raise RowError("no prompt, and the two conversations share no turn")
    if count in (len(first), len(second)):
        raise RowError("chosen and rejected are the same, or one is the other's beginning")
    return first[:count], first[count:], second[count:]


def _differ(first: Any, second: Any) -> None:
    if first == second:
        raise RowError("chosen and rejected are the same")


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"{name} is missing or no text")
    return value


def seen(row: Mapping[str, Any], needed: str) -> str:
    """What a row has and what it would need, in words."""
    return f"has {', '.join(map(str, row)) or 'no fields'}; needs {needed}"
