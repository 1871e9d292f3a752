"""Names in one flag, separated by commas."""

from __future__ import annotations

__all__ = ["names_in"]


def names_in(text: str | None) -> tuple[str, ...]:
    """Each name once, in the order of the text, without the spaces around it."""
    return tuple(dict.fromkeys(word.strip() for word in (text or "").split(",") if word.strip()))
