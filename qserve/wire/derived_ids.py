"""Ids inside an answer: whoever tells the same answer once more gives the same ones."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["derived_id"]


def derived_id(answer_id: str, number: int) -> str:
    """32 hexadecimal digits for the `number`-th item of an answer whose own id nobody can guess."""
    return blake2b(f"{answer_id}/{number}".encode(), digest_size=16).hexdigest()
