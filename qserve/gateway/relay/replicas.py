"""The replicas of one role as every process of the gateway sees them: who serves, and whether somebody is ready."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from qserve.engine.base import WorkerEndpoint, WorkerState
from qserve.gateway.relay.upstream import Life, Upstream
from qserve.gateway.routing.outstanding import RequestTokens

__all__ = ["Replicas", "RoutedRequest", "Slot"]


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """One request as the choice of a replica needs it: its prompt's blocks, its size, and the hash of its bytes."""

    blocks: tuple[int, ...]
    num_bytes: int
    num_sequences: int
    max_tokens: int | None
    digest: int


class Slot(Protocol):
    """`async with`: waits until a replica is to answer, with as many slots there as the request has sequences.

    Raises ApiError: 503 where nobody can answer, 429 where too many wait, 422 for a request that ends workers.
    """

    upstream: Upstream

    def has_begun(self) -> None:
        """The first byte of the answer came: the prompt is read."""

    def is_answered(self, told: RequestTokens) -> None:
        """The request came to its end; `told` is what the worker reported, 0 where it did not."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Replicas:
    """Workers that serve the same model; who has a slot with them is decided where `slot` is made."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        """At least one, all of one role."""
        self.role = upstreams[0].endpoint.role
        self.upstreams: list[Upstream] = []
        for upstream in upstreams:
            self.add(upstream)

    def add(self, upstream: Upstream) -> None:
        """A further replica."""
        self.upstreams.append(upstream)

    def remove(self, upstream: Upstream) -> None:
        """A replica that is gone for good; it must not run requests any more."""
        self.upstreams.remove(upstream)

    @property
    def endpoint(self) -> WorkerEndpoint:
        """What holds for all of them (names, limits, fields of requests), as one that is ready tells it."""
        return next((one.endpoint for one in self.upstreams if one.is_ready), self.upstreams[0].endpoint)

    @property
    def is_single(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.upstreams) == 1

    @property
    def is_ready(self) -> bool:
        """Whether one of them takes requests."""
        return any(one.is_ready for one in self.upstreams)

    @property
    def num_free_in_background(self) -> int:
        """Places that background requests would get at once."""
        return sum(one.admission.num_free_in_background for one in self.upstreams if one.is_ready)

    def check_ready(self) -> None:
        """503 with the supervisor's words unless one takes requests, or is about to."""
        if not self.is_ready and not (self._is_coming(()) and self.endpoint.request_fields is not None):
            self.upstreams[0].check_ready()

    def asked(
        self, path: str, body: bytes, model: str | None, num_sequences: int, max_tokens: int | None
    ) -> RoutedRequest:
        """What a request comes to. Raises ApiError 422 for one that is known to end workers."""
        raise NotImplementedError

    def slot(self, asked: RoutedRequest, without: Collection[Life], *, background: bool) -> Slot:
        """A slot for it at one of them, `without` those that were asked already and were not restarted since."""
        raise NotImplementedError

    async def died(self, asked: RoutedRequest, death: Life) -> bool:
        """The request was in flight in this death; whether that is one too many."""
        raise NotImplementedError

    def observe(self) -> None:
        """Acts on what the supervisor wrote."""
        for upstream in self.upstreams:
            upstream.observe()

    def _is_coming(self, without: Collection[Life]) -> bool:
        """Whether one is being restarted, or will be: the supervisor may not know yet of one that was asked in vain."""
        return not self.is_single and any(
            one.endpoint.state is WorkerState.RESTARTING or (one.is_ready and one.life in without)
            for one in self.upstreams
        )
