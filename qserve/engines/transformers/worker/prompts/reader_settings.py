"""What a process that reads bodies is told; apart from it, so that the worker imports none of its schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ReaderSettings"]


@dataclass(frozen=True)
class ReaderSettings:
    """Of one model, as a file has it.

    Attributes:
        tokenizer: the worker's own, as `Tokenizer.save` writes it.
        template: the chat template, with the special tokens that it finds; None: the model has none.
        tool_template: the one for conversations with tools.
        limits: ContextLimits as JSON.
        address_space_bytes: of the whole process; the largest body that is allowed takes some 700 MB as JSON.
        named_templates: names of those that the model has, where there are several.
    """

    tokenizer: str
    template: str | None
    tool_template: str | None
    special_tokens: dict[str, Any]
    limits: dict[str, int | None]
    vocab_size: int
    address_space_bytes: int = 3 * 1024**3
    named_templates: tuple[str, ...] = ()
