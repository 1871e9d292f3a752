"""Loaded by schemathesis: brings what it makes up within the rules that JSON Schema can't tell (docs/api.md has them).

Only bodies that it takes for valid are touched; what it means to be refused goes out as it is.
"""

from __future__ import annotations

from typing import Any

import schemathesis

_ANSWER = {"role": "assistant", "content": "x"}
# A prompt and its answer share the context, and a test has seconds.
_MOST_TOKENS, _MOST_CHARS, _MOST_ITEMS = 8, 40, 4
_STRUCTURES = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n")
# Of other APIs for chats: what must fit together in ways that JSON Schema can't tell.
_TOGETHER = (
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "system",
    "text",
    "reasoning",
    "chat_template_kwargs",
    "instructions",
    "structured_outputs",
)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """See the module."""
    mode = case.meta.generation.mode if case.meta is not None else None
    if isinstance(case.body, dict) and mode is not None and mode.is_positive:
        case.body = _within_rules(_short(case.body), case.operation.path)
    if mode is not None and mode.is_positive and "starting_after" in (case.query or {}):
        case.query["stream"] = "true"  # there is nothing to start after in an object


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_MOST_CHARS]
    if isinstance(value, list):
        return [_short(one) for one in value[:_MOST_ITEMS]]
    if isinstance(value, dict):
        return {name: one if name == "model" else _short(one) for name, one in value.items()}
    return value


def _within_rules(body: dict[str, Any], path: str) -> dict[str, Any]:
    _bound_counts(body)
    if path.startswith(("/v1/messages", "/v1/responses")):
        return _a_question(body, path)
    if path.endswith("completions") and body.get("max_tokens") is body.get("max_completion_tokens") is None:
        body["max_tokens"] = _MOST_TOKENS
    if isinstance(body.get("prompt"), list) and isinstance(body["prompt"][-1], dict):  # whose answer is scored
        body["prompt"].append({"role": "user", "content": "x"})
    if body.get("model") != "demo" and path not in ("/tokenize", "/v1/score/evaluation"):
        _end_with_answers(body)
    for name in ("queries", "text_1", "data_1"):  # as many as documents, or one
        if isinstance(body.get(name), list):
            body[name] = body[name][:1]
    if isinstance(body.get("responses"), list):  # steps are for process reward models
        body["responses"] = [one if isinstance(one, str) else one[0] for one in body["responses"]]
    if isinstance(body.get("max_length"), int | float):  # what is longer is refused
        body["max_length"] = max(body["max_length"], 256)
    if isinstance(body.get("truncate_prompt_tokens"), int | float):  # at most what the model reads
        body["truncate_prompt_tokens"] = min(body["truncate_prompt_tokens"], 256)
    _with_texts_to_rank(body)
    body.pop("references", None)  # for rules and judges
    _plain_vectors(body)
    for name in _STRUCTURES:  # random ones are none that an answer can follow
        body.pop(name, None)
    _with_tools_that_can_be_called(body)
    if body.get("normalize") is True:  # for checkpoints that record mean and deviation
        body["normalize"] = False
    return body


def _plain_vectors(body: dict[str, Any]) -> None:
    """With no more numbers than there are, without a prompt, and an instruction only beside text."""
    body.pop("prompt_name", None)
    if body.get("dimensions") is not None:
        body["dimensions"] = 1
    if isinstance(body.get("input"), list):
        body.pop("instruction", None)


def _with_texts_to_rank(body: dict[str, Any]) -> None:
    """An object that is ranked has one text, or fields that `rank_fields` names."""
    objects = [body.get("query"), *(body.get("texts") or ())]
    objects += body["documents"] if isinstance(body.get("documents"), list) else ()
    for one in objects:
        if isinstance(one, dict):
            one["text"] = "x"
            one.pop("content", None)
    if body.get("rank_fields") is not None:
        body["rank_fields"] = ["text"]


def _bound_counts(body: dict[str, Any]) -> None:
    for name in _COUNTS:
        if isinstance(body.get(name), int | float):
            body[name] = min(body[name], 2 if name == "n" else _MOST_TOKENS)


def _a_question(body: dict[str, Any], path: str) -> dict[str, Any]:
    """With the fields that stand for themselves as they were made up."""
    kept = {name: value for name, value in body.items() if name not in _TOGETHER}
    if path.startswith("/v1/responses"):
        if kept.get("background"):  # needs it
            kept.pop("store", None)
        return {**kept, "input": "What is 1+2?", "max_output_tokens": _MOST_TOKENS}
    return {**kept, "messages": [{"role": "user", "content": "What is 1+2?"}]}


def _with_tools_that_can_be_called(body: dict[str, Any]) -> None:
    if isinstance(body.get("tools"), list):
        tools = {tool["function"]["name"]: tool for tool in body["tools"]}
        body["tools"] = [{"type": "function", "function": {"name": name}} for name in tools]
    if body.get("tool_choice") not in (None, "none", "auto"):
        del body["tool_choice"]
    pairs = [pair for pair in body.get("pairs") or () if isinstance(pair, dict)]
    sides = [pair.get(side) for pair in pairs for side in ("prompt", "chosen", "rejected")]
    talks = [one.get("messages") if isinstance(one, dict) else one for one in body.get("conversations") or ()]
    for turns in (body.get("messages"), body.get("prompt"), *talks, *sides):
        for message in turns if isinstance(turns, list) else ():
            for call in (message.get("tool_calls") if isinstance(message, dict) else None) or ():
                call["function"]["arguments"] = "{}"


def _end_with_answers(body: dict[str, Any]) -> None:
    """What is scored of a conversation is the assistant's last message."""
    pairs = [one for one in body.get("pairs") or () if isinstance(one, dict)]
    sides = [pair[side] for pair in pairs for side in ("chosen", "rejected")]
    talks = [one.get("messages") if isinstance(one, dict) else one for one in body.get("conversations") or ()]
    for conversation in (body.get("messages"), *talks, *sides):
        if isinstance(conversation, list):
            conversation.append(dict(_ANSWER))
