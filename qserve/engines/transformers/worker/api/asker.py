"""Who asks, as the gateway tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from qserve.engines.transformers.worker.api.journal import Journal
from qserve.engines.transformers.worker.batching.turns import Turn
from qserve.wire.worker_headers import CACHE_SALT, CLIENT, JOURNAL, PRIORITY
from qserve.worker.asgi import body_of

__all__ = ["Asker"]


@dataclass(frozen=True)
class Asker:
    """Of one request.

    Attributes:
        client: whom it counts for where sequences wait for each other.
        is_background: whether all others go first.
        is_urgent: whether it goes before all others.
        cache_salt: with whom it shares cached prompts; None: as its own `cache_salt` says.
        journal: what its answer is made from beside the request.
        keeps_journal: whether the gateway wants that beside the events of a stream.
    """

    client: str = ""
    is_background: bool = False
    cache_salt: str | None = None
    journal: Journal = field(default_factory=Journal)
    keeps_journal: bool = False
    is_urgent: bool = False

    @classmethod
    def of(cls, headers: Mapping[str, str], journal: Journal) -> Asker:
        """By the headers of a request."""
        priority = headers.get(PRIORITY)
        return cls(
            headers.get(CLIENT, ""),
            priority == "background",
            headers.get(CACHE_SALT),
            journal,
            JOURNAL in headers,
            priority == "high",
        )

    @classmethod
    async def read(cls, request: Request) -> tuple[Asker, bytes]:
        """And the body of its request. Raises what refuses it."""
        body = await body_of(request)
        num_bytes = int(request.headers.get(JOURNAL, "0"))
        if not num_bytes:
            return cls.of(request.headers, Journal()), body
        return cls.of(request.headers, Journal.read(body[-num_bytes:])), body[:-num_bytes]

    def turn(self, request_id: str) -> Turn:
        """Whose the sequences of its request are."""
        return Turn(self.client, request_id, self.is_background, self.is_urgent)

    def salt(self, given: str | None) -> str:
        """Of its prompts, where its body says `given`."""
        return (given if self.cache_salt is None else self.cache_salt) or ""
