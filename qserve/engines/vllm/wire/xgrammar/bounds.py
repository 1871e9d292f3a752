"""Bounds on what xgrammar, vLLM's library, is asked to compile: some structures take it minutes.

vLLM compiles in a thread for every two cores, and ends none that takes long: whoever asks for another structure waits.
Seconds of a core by 0.2.8: 4 for an object of 1,000 properties that may be left out, 35 for 2,000, 33 for a pattern of
2,000 letters that may be left out, 11 for a grammar of 1,000 such words, 1 for 5,000 values of an enum. Within these
bounds it was 2 at most, but for 3 to 6 of patterns with up to 32 characters of any kind that may be left out. Counts
(`maxItems`, `minProperties`) cost it nothing up to 1e9, since it writes repetitions as such; a string whose length is
bound takes 2 seconds whatever the bound is, and again for each other bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from qserve.engines.vllm.wire.xgrammar.width import Width, width_of
from qserve.grammar.counts import check_counts
from qserve.wire.errors import ApiError

__all__ = ["check_bounds"]

MOST_PROPERTIES, MOST_OPTIONAL, MOST_OPTIONAL_OF_ONE, MOST_VALUES, MOST_OPTIONAL_PARTS, MOST_LEVELS = (
    2000,
    1024,
    256,
    5000,
    256,
    200,
)
MOST_COUNTED = 64
"""Properties that may be left out, where their number is bound: 200 of which 5 are needed take more than 25 seconds."""
MOST_LENGTHS = 16
"""Different pairs of `minLength` and `maxLength`."""
MOST_WAYS, MOST_WAYS_OF_ONE, MOST_WAYS_IN_TEXTS = 32, 128, 16
"""As `width` counts them: in patterns of schemas, there in one place, in expressions and grammars."""
_LISTED = ("enum", "choice", "anyOf", "oneOf", "prefixItems", "structures")
_LENGTHS = ("minLength", "maxLength")
_OPTIONAL_PART = re.compile(r"\\.|([?*]|\{\s*(?:0\s*)?,)", re.DOTALL)


def check_bounds(asked: Any, param: str) -> None:
    """Raises ApiError 400, of the field `param`, where a structure anywhere in `asked` is too large for the library."""
    check_counts(asked, param, multiplies=False)
    sums = dict.fromkeys(("properties", "optional", "values", "parts"), 0)
    in_patterns, in_texts = Width(), Width()
    lengths = set()
    for one in _objects(asked, param):
        properties, required = one.get("properties"), one.get("required")
        if isinstance(properties, dict):
            names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            num_optional = len(properties.keys() - names)
            if "minProperties" in one or "maxProperties" in one:
                _refuse(
                    num_optional > MOST_COUNTED,
                    num_optional,
                    "properties that may be left out, and bounds on their number",
                    MOST_COUNTED,
                    param,
                )
            _refuse(
                num_optional > MOST_OPTIONAL_OF_ONE,
                num_optional,
                "properties of an object that may be left out",
                MOST_OPTIONAL_OF_ONE,
                param,
            )
            sums["properties"] += len(properties)
            sums["optional"] += num_optional
        if one.keys() & _LENGTHS:
            lengths.add(tuple(str(one.get(name)) for name in _LENGTHS))
        sums["values"] += sum(len(value) for name in _LISTED if isinstance(value := one.get(name), list))
        texts = [value for name in ("regex", "grammar") if isinstance(value := one.get(name), str)]
        patterns = [
            value for value in (one.get("pattern"), *_keys(one.get("patternProperties"))) if isinstance(value, str)
        ]
        sums["parts"] += sum(bool(part) for text in texts + patterns for part in _OPTIONAL_PART.findall(text))
        for text in texts:
            in_texts.add(width_of(text, copies=False))
        for text in patterns:
            in_patterns.add(width_of(text, copies=True))
    most_in_patterns = MOST_WAYS_OF_ONE if in_patterns.num_parts == 1 else MOST_WAYS
    for width, most in ((in_patterns, most_in_patterns), (in_texts, MOST_WAYS_IN_TEXTS)):
        _refuse(width.ways > most, width.ways, "characters of any kind that may be left out", most, param)
    _refuse(len(lengths) > MOST_LENGTHS, len(lengths), "different bounds on lengths of strings", MOST_LENGTHS, param)
    for name, words, most in (
        ("properties", "properties", MOST_PROPERTIES),
        ("optional", "properties that may be left out", MOST_OPTIONAL),
        ("values", "values and alternatives", MOST_VALUES),
        ("parts", "'?' and '*' in its patterns and grammars", MOST_OPTIONAL_PARTS),
    ):
        _refuse(sums[name] > most, sums[name], words, most, param)


def _refuse(is_too_much: bool, number: int, words: str, most: int, param: str) -> None:
    if is_too_much:
        message = (
            f"the structure has {number:,} {words}; vLLM's xgrammar takes {most:,}, because other requests wait "
            "while it compiles. Please ask for less, or serve the model with --engine transformers"
        )
        raise ApiError(400, message, "invalid_grammar", param)


def _keys(value: Any) -> Iterable[Any]:
    return value if isinstance(value, dict) else ()


def _objects(asked: Any, param: str) -> Iterator[Mapping[str, Any]]:
    """Every object in it, whatever it is inside of."""
    waiting = [(asked, 0)]
    while waiting:
        value, level = waiting.pop()
        if not isinstance(value, (dict, list)):
            continue
        if level > MOST_LEVELS:
            raise ApiError(400, "the JSON schema is nested too deeply", "invalid_grammar", param)
        if isinstance(value, dict):
            yield value
        waiting += [(inner, level + 1) for inner in (value.values() if isinstance(value, dict) else value)]
