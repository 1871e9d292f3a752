"""String schemas for xgrammar: patterns, formats, lengths."""

from __future__ import annotations

import re
from typing import Any

from qserve.engines.vllm.wire.unenforceable import UnenforceableSchema, check_alone
from qserve.grammar.formats import PATTERN_OF_FORMAT

__all__ = ["check_pattern", "string_for_xgrammar"]

_PARTS_OF_PATTERN = re.compile(r"\\.|\(\?.|.", re.DOTALL)
_REPETITIONS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_MOST_REPEATED, _MOST_CHARACTERS = 128, 8192
_ESCAPES_OF_CHARACTERS = frozenset('\\"nrtfv0xucpP')
_FORMATS = frozenset(
    {
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "json-pointer",
        "relative-json-pointer",
        "time",
        "uri",
        "uri-reference",
        "uri-template",
        "uuid",
    }
)


def string_for_xgrammar(own: dict[str, Any], where: str) -> dict[str, Any]:
    """Keywords of a string schema, as xgrammar enforces them. Raises UnenforceableSchema."""
    if own.get("format") not in _FORMATS:
        own.pop("format", None)  # a remark, as for validators
    for keyword in ("pattern", "format"):
        if keyword in own:
            check_alone(keyword, own, where)
    if "pattern" in own:
        check_pattern(own["pattern"], where)
    if "format" in own:
        # xgrammar's own reading lets 1.0.001.000, the 30th of February, the 61st second through.
        exact = PATTERN_OF_FORMAT.get(own["format"])
        return own if exact is None else {"pattern": exact}
    least, most = own.get("minLength", 0), own.get("maxLength")
    if isinstance(least, int) and least > _MOST_CHARACTERS:
        raise UnenforceableSchema("minLength", where, f" above {_MOST_CHARACTERS}")
    # A larger number is none for the library; which characters there are, the server's plugin sets (`schema_grammars`).
    return {**own, "maxLength": min(most, _MOST_CHARACTERS)} if isinstance(most, int) else own


def check_pattern(pattern: Any, where: str) -> None:
    """Raises UnenforceableSchema: looking around is left out, and what JSON escapes is written as it is."""
    for one in _PARTS_OF_PATTERN.findall(str(pattern)):
        if one.startswith("(?") and one != "(?:":
            raise UnenforceableSchema("pattern", where, " that looks around, or names its groups")
        if one == '"' or (one[0] == "\\" and one[1] in _ESCAPES_OF_CHARACTERS):
            raise UnenforceableSchema("pattern", where, f" that asks for {one}")
    if any(int(number) > _MOST_REPEATED for times in _REPETITIONS.findall(str(pattern)) for number in times if number):
        raise UnenforceableSchema("pattern", where, f" that repeats something more than {_MOST_REPEATED} times")
