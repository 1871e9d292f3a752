"""Parses texts rendered by Qwen's chat template back into messages, for rules and judges.

OpenRLHF and verl send such texts. A rule that looks for an answer must not meet the question in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["turns_of", "without_end"]

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>\s*|\Z)", re.DOTALL)
_END = re.compile(r"(<\|(?:im_end|endoftext)\|>)")
# Templates with a switch write it where thinking is off.
_NO_THOUGHT = re.compile(r"\A<think>\s*</think>\s*")


def turns_of(text: str) -> list[Mapping[str, str]]:
    """Role and content of each turn; none where `text` is no conversation that ends with an answer."""
    if not text.lstrip().startswith("<|im_start|>"):
        return []
    turns = [{"role": match[1], "content": match[2]} for match in _TURN.finditer(without_end(text))]
    if not turns or turns[-1]["role"] != "assistant":
        return []
    turns[-1]["content"] = _NO_THOUGHT.sub("", turns[-1]["content"])
    return [*turns]


def without_end(text: str) -> str:
    """`text` without the tokens that ended it."""
    parts = _END.split(text)  # text, token, text, …
    kept = len(parts)
    while kept > 1 and not parts[kept - 1].strip():
        kept -= 2
    return text if kept == len(parts) else "".join(parts[:kept]).rstrip()
