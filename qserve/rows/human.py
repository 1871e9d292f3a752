"""Texts of turns that begin with "Human:" and "Assistant:", as hh-rlhf has them: a conversation written as one text."""

from __future__ import annotations

import re

from qserve.rows.turns import Turn

__all__ = ["turns_in"]

_BEGINNING = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def turns_in(text: str) -> list[Turn] | None:
    """None where the text is not written so. An answer that is still to be given, at its end, is no turn."""
    before, *parts = _BEGINNING.split(text)
    if before or not parts or parts[0] != "Human" or "Assistant" not in parts[::2]:
        return None
    turns = [
        Turn({"role": _ROLES[name], "content": said.strip()})
        for name, said in zip(parts[::2], parts[1::2], strict=True)
    ]
    return turns[:-1] if turns[-1] == Turn({"role": "assistant", "content": ""}) else turns
