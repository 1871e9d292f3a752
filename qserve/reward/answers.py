"""Checks texts before scoring: a conversation must end with a non-empty answer.

One rule, whoever asks: every protocol of the reward worker, `qserve score`, `eval-reward` and `reward check`. A score
of an empty answer would be that of the prompt, which no training has seen as an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qserve.reward.failures import TextRefused

__all__ = ["check_answered"]


def check_answered(messages: Sequence[Mapping[str, Any]], where: str) -> None:
    """Raises TextRefused unless an assistant's last message says something or calls a tool. `where`: the field."""
    if not messages:
        raise TextRefused(f"'{where}' is empty; send at least one message", "invalid_value", where)
    last = messages[-1]
    if last.get("role") != "assistant":
        raise TextRefused(
            f"'{where}' ends with a message of role '{last.get('role')}'; the last message must be the assistant's: "
            "it is the answer to score",
            "invalid_value",
            where,
        )
    if not last.get("content") and not last.get("tool_calls"):
        raise TextRefused(f"'{where}' ends with an empty answer; there is nothing to score", "empty_input", where)
