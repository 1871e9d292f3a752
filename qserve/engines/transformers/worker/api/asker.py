"""Who asks, as the gateway tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qserve.engines.transformers.worker.batching.turns import Turn
from qserve.wire.worker_headers import CACHE_SALT, CLIENT, PRIORITY

__all__ = ["Asker"]


@dataclass(frozen=True)
class Asker:
    """Of one request.

    Attributes:
        client: whom it counts for where sequences wait for each other.
        is_background: whether all others go first.
        cache_salt: with whom it shares cached prompts; None: as its own `cache_salt` says.
    """

    client: str = ""
    is_background: bool = False
    cache_salt: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Asker:
        """By the headers of a request."""
        return cls(headers.get(CLIENT, ""), headers.get(PRIORITY) == "background", headers.get(CACHE_SALT))

    def turn(self, request_id: str) -> Turn:
        """Whose the sequences of its request are."""
        return Turn(self.client, request_id, self.is_background)

    def salt(self, given: str | None) -> str:
        """Of its prompts, where its body says `given`."""
        return (given if self.cache_salt is None else self.cache_salt) or ""
