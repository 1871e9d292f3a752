"""A grammar and where in the answer it holds: what the process that reads bodies hands to the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["GrammarSpec"]


@dataclass(frozen=True)
class GrammarSpec:
    """One request's grammar.

    Attributes:
        grammar: as llguidance reads it.
        begins: `answer`: with the answer, after a thought if there is one; and the answer ends with it. `tool_call`:
            after each `<tool_call>`, up to the end of the call, and all else is free.
        only_one: the answer ends after the first call.
        param: the field of the request that asks for it.
    """

    grammar: str
    begins: Literal["answer", "tool_call"] = "answer"
    only_one: bool = False
    param: str = "response_format"
