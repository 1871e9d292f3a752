"""What llguidance says of a structure that it does not take, in words for whoever sent it."""

from __future__ import annotations

import re

from qserve.engines.transformers.worker.grammar.trial_process import MOST_BYTES, MOST_CPU_S
from qserve.units import format_bytes

__all__ = ["TOO_MUCH", "refusal"]

TOO_MUCH = (
    f"this structure is too large: it takes more than {MOST_CPU_S} s of a processor core or {format_bytes(MOST_BYTES)} "
    "to prepare; ask for smaller counts, multiples and repetitions, or for fewer alternatives"
)
"""Of one whose trial was ended."""

_MAX_CHARS = 300
# Where in its own grammar the library was, and which of its parts complains.
_PLACES = re.compile(
    r"(?:at \d+\(\d+\): |failed to compile JSON schema: |Unsatisfiable schema: |(?:[Pp]arser|[Ll]exer) [Ee]rror: )+"
)
_UNHELD = re.compile(r"Unimplemented keys: \[(.*)\]")
_ELSEWHERE = re.compile(r"Resource '(.*)' is not present")
_TOO_LARGE = ("too big", "too large", "too many expressions", "fuel exhausted", "items; max is")


def refusal(error: str) -> str:
    """A sentence of `error`, which may have many lines."""
    lines = error.splitlines() or [""]
    first = _PLACES.sub("", lines[0])
    if (unheld := _UNHELD.search(first)) is not None:
        names = " or ".join(unheld[1].replace('"', "'").split(", "))
        return f"this structure can't be enforced: grammars do not support {names[:_MAX_CHARS]}; leave it out"
    if first.endswith("regex parse error:"):
        why = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), "")
        pattern = re.match(r"invalid regex (\".*\") \(in regex\)", first)
        named = f" {pattern[1][:_MAX_CHARS]}" if pattern is not None else ""
        return f"this structure can't be read: the regular expression{named} is wrong: {why}"
    return f"no answer can follow this structure: {_why(first)[:_MAX_CHARS]}"


def _why(first: str) -> str:
    if (elsewhere := _ELSEWHERE.match(first)) is not None:
        return f"no schema is fetched from elsewhere, such as {elsewhere[1]}"
    if first.startswith("panic"):
        return "it is too large, or the library that enforces structures failed on it"
    if first == "NoExtensionBias":
        return "it has no end"
    if first.startswith("oneOf constraints"):
        return "a value may follow two alternatives of its 'oneOf'; write 'anyOf'"
    if first.startswith("Too many items"):
        return "it has no end, or too many ways to continue"
    if any(said in first for said in _TOO_LARGE):
        return "it is too large"
    return first
