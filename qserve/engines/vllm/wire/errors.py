"""What vLLM says of a request that it refuses, in words for whoever sent it: a sentence, and the field it is about.

Read from vLLM 0.32. It answers with Python's words: pydantic's list of what is wrong with each alternative of a union,
parameters in brackets, notes of xgrammar's C++. What is not known here stays as it came.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

__all__ = ["in_our_words"]

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
