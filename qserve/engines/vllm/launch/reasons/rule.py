"""A rule: a pattern over the whole log of a start, and the failure that its match means."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from qserve.engines.vllm.launch.failure import Failure, FailureKind

__all__ = ["Rule", "rule", "says"]


@dataclass(frozen=True)
class Rule:
    """A pattern over the whole log, and what its match means."""

    pattern: re.Pattern[str]
    failure: Callable[[re.Match[str]], Failure]


def rule(pattern: str, failure: Callable[[re.Match[str]], Failure]) -> Rule:
    """`^` and `$` are those of lines."""
    return Rule(re.compile(pattern, re.MULTILINE), failure)


def says(kind: FailureKind, message: str) -> Callable[[re.Match[str]], Failure]:
    """A failure whose message quotes groups of the pattern by name."""
    return lambda found: Failure(kind, message.format(**{k: v or "" for k, v in found.groupdict().items()}))
