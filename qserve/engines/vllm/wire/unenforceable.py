"""The error of a JSON schema with a keyword that a grammar library would silently ignore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["UnenforceableSchema", "check_alone"]

# Held by llguidance, and so by qserve's own engine.
_HELD_BY_LLGUIDANCE = frozenset(
    {"multipleOf", "pattern", "format", "allOf", "$ref", "anyOf", "patternProperties", "minimum", "maximum"}
)


class UnenforceableSchema(ValueError):
    """A keyword that xgrammar would leave out. `is_enforced_elsewhere`: qserve's own engine holds it."""

    def __init__(self, keyword: str, where: str, why: str = "") -> None:
        super().__init__(f"'{keyword}' at {where or 'the top'} of the schema{why}")
        self.is_enforced_elsewhere = keyword in _HELD_BY_LLGUIDANCE


def check_alone(keyword: str, given: Mapping[str, Any], where: str) -> None:
    """Raises UnenforceableSchema for a `keyword` of xgrammar's that others of the schema in `given` stand beside."""
    if beside := sorted(given.keys() - {keyword}):
        raise UnenforceableSchema(keyword, where, " next to " + ", ".join(f"'{name}'" for name in beside))
