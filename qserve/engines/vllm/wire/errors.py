"""What vLLM says of a request that it refuses, in words for whoever sent it: a sentence, and the field it is about.

Read from vLLM 0.32. It answers with Python's words: pydantic's list of what is wrong with each alternative of a union,
parameters in brackets, notes of xgrammar's C++. What is not known here stays as it came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from qserve.engines.vllm.wire.overflow import overflow_of_vllm
from qserve.wire.errors import ApiError, too_long
from qserve.wire.overflow import Overflow
from qserve.wire.prompt_size import LONGER

__all__ = ["error_of", "in_our_words", "stream_error_of"]

# What vLLM says of structures that it can't hold an answer to.
_OF_GRAMMARS = ("Failed to transform", "Invalid grammar", "Invalid structural tag", "Grammar error")
# What vLLM says of a prompt that leaves no token for an answer, and of a request for none.
_NO_ROOM = "max_tokens must be at least 1, got 0"
_CODE_OF_STATUS = {404: "not_found", 422: "unprocessable", 501: "not_implemented"}
# How vLLM 0.32 ends a stream that it began with 200: create_streaming_error_response. Where its engine's
# process died, the message is that of EngineDeadError.
_FAILURE = re.compile(rb'^data: ?\{\s*"(?:error"\s*:|type"\s*:\s*"error").*$', re.MULTILINE)
_ENGINE_DEAD = (b"EngineCore encountered an issue", b"EngineDead")

# The notes of xgrammar's C++.
_SOURCE_LINE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
# Dicts of Python's, in which a message is between single quotes, or has them inside.
_PROBLEMS = re.compile(r"\d+ validation errors?:\n")
_PROBLEM = re.compile(r"""'loc': '([^']*)', 'msg': ['"]((?:(?!'loc': ).)*?)['"], 'input':""")
_PARAMETER = re.compile(r" \(parameter=([\w.]+)(?:, value=|\)\Z)")
_NEEDED = re.compile(r"Input should be (.*?)(?:, (?:unable to|got) .*)?$", re.DOTALL)
_QUOTED = re.compile(r"`([^`]*)`")
_GREEDY_N = re.compile(r"n must be 1 when using greedy sampling, got (\d+)\.")
# The fields by which alternatives are told apart.
_TAGS = ("type", "role")
_EMPTY_PROMPT = "the prompt is empty: it has no tokens"
_SENTENCES: Mapping[str, str] = {
    "Internal server error": "vLLM failed on this request; its log says why",
    "Invalid structural tag specification.": (
        "no call can follow these tools: the 'parameters' of one are not a JSON schema that xgrammar can enforce"
    ),
    "Invalid grammar specification.": "the grammar can't be read; EBNF as llama.cpp writes it, or Lark, is needed",
    "When using `tool_choice`, `tools` must be set.": "'tool_choice' asks for a tool, and 'tools' has none",
    "The decoder prompt cannot be empty": _EMPTY_PROMPT,
    "You must pass at least one prompt": _EMPTY_PROMPT,
    "Either prompt or prompt_embeds must be provided and non-empty.": _EMPTY_PROMPT,
}


def error_of(status: int, body: bytes, limit: int | None = None) -> ApiError | None:
    """An error that vLLM answered: its message in plain words, and a `code` that is a word.

    vLLM writes the status into `code`, and the place in the body as `body.prompt`. None if the body is no such error.
    `limit`: the tokens that the model takes, prompt and answer together; None where the request asks for no answer.
    """
    try:
        error = json.loads(body)["error"]
        said, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        return None
    message, about = in_our_words(said)
    about = about or (param.removeprefix("body.") if isinstance(param, str) else None)
    overflow = overflow_of_vllm(said)
    if limit is not None and said.startswith(_NO_ROOM):
        overflow = Overflow(limit, limit)
    if status == 400 and overflow is not None:
        less = "shorten the prompt" if overflow.max_tokens is None else "lower max_tokens"
        return too_long(overflow, f"{less} or serve with {LONGER}", about)
    if status == 400 and said.startswith(_OF_GRAMMARS):
        code = "invalid_grammar"
    else:
        code = _CODE_OF_STATUS.get(status, "worker_error" if status >= 500 else "invalid_value")
    return ApiError(status, message, code, about)


def stream_error_of(events: bytes) -> str:
    """The code of the error with which vLLM ended a stream; "" where it ended well."""
    found = _FAILURE.search(events)
    if found is None:
        return ""
    return "worker_died" if any(words in found[0] for words in _ENGINE_DEAD) else "worker_error"


def in_our_words(message: str) -> tuple[str, str | None]:
    """The sentence, and the field that it names, dotted; None: it names none."""
    if _PROBLEMS.match(message) is not None and (problems := _PROBLEM.findall(message)):
        return _of_problems(problems)
    message, param = _SOURCE_LINE.sub("", message), None
    if message.endswith(")") and (told := _PARAMETER.search(message)) is not None:
        message, param = message[: told.start()], told[1]
    if (greedy := _GREEDY_N.fullmatch(message)) is not None:
        return f"'n' is {greedy[1]}: vLLM gives one answer where 'temperature' is 0; raise it, or ask for one", "n"
    return _QUOTED.sub(r"'\1'", _SENTENCES.get(message, message)), param


def _of_problems(problems: Iterable[tuple[str, str]]) -> tuple[str, str | None]:
    told = [(place.removeprefix("body").removeprefix("."), said) for place, said in problems]
    told = _of_one_alternative(told)
    named = [(".".join(part for part in place.split(".") if not part[:1].isupper()), said) for place, said in told]
    return "; ".join(dict.fromkeys(_sentence(*one) for one in named)), named[0][0] or None


def _of_one_alternative(problems: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of alternatives, which pydantic names by their classes, the one that was meant.

    Its tags are right; of several such, the one with the fewest problems.
    """
    alternatives: dict[str, list[tuple[str, str]]] = {}
    for place, said in problems:
        way = place.split(".")
        of_class = next((i for i, part in enumerate(way) if part[:1].isupper()), None)
        if of_class is None:
            return problems
        alternatives.setdefault(".".join(way[: of_class + 1]), []).append((place, said))
    tagged = {f"{name}.{tag}" for name in alternatives for tag in _TAGS}
    meant = [those for those in alternatives.values() if not any(place in tagged for place, _ in those)]
    return min(meant or alternatives.values(), key=len)


def _sentence(name: str, said: str) -> str:
    said = said.removeprefix("Value error, ")
    if not name:
        return said
    if said == "Field required":
        return f"'{name}' is missing"
    if (needed := _NEEDED.fullmatch(said)) is not None:
        return f"'{name}': {needed[1]} is needed"
    return f"'{name}': {said}"
