"""The chat model of the same `qserve up` as a judge, called at its worker's socket with the internal key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["ServedChat"]


@dataclass(frozen=True)
class ServedChat:
    """`socket` is a path, `key` what the worker wants to be shown, `model` the name that requests carry."""

    socket: str
    key: str = field(repr=False)
    model: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for a file that only this user can read."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> ServedChat | None:
        """What `to_json` wrote; None of None."""
        return None if data is None else cls(**data)
