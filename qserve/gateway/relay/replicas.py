"""The replicas of one model as every gateway process knows them: their facts and states."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from qserve.gateway.relay.deadline import Deadline
from qserve.gateway.relay.upstream import Life, Upstream
from qserve.gateway.routing.router import RequestTokens
from qserve.worker.base import WorkerFacts, WorkerState

__all__ = ["Replicas", "RoutedRequest", "Slot"]


_RUN_OR_WILL = frozenset({WorkerState.READY, WorkerState.STARTING, WorkerState.RESTARTING})


class RoutedRequest(NamedTuple):
    """What routing needs of a request: hashes of its prompt's blocks, its size, and a hash of its bytes.

    `client` is whom it counts for (`auth.share_of`); `is_more`: a further portion of one that has slots already.
    `is_portion`: the first or a further one. `is_urgent`: its key goes before others.
    `deadline`: when the whole request is to be over.
    """

    blocks: tuple[int, ...]
    num_bytes: int
    num_sequences: int
    max_tokens: int | None
    digest: int
    client: str = ""
    is_more: bool = False
    deadline: Deadline | None = None
    is_urgent: bool = False
    is_portion: bool = False


class Slot(Protocol):
    """`async with` waits for slots at a replica, one for each sequence of the request.

    Raises ApiError: 503 if no replica is available or the request can't be over by its deadline, 429 if too many wait,
    422 for a request that crashes workers.
    """

    upstream: Upstream

    def has_begun(self) -> None:
        """The first byte of the answer has arrived: prefill is done."""

    def is_answered(self, tokens: RequestTokens, first_token_s: float | None) -> None:
        """The request is complete; `tokens` that the worker reported, 0 if it did not.

        `first_token_s`: from the slot to the first token, where that was seen.
        """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Replicas:
    """Workers that serve the same model; `slot` requests a slot at one of them."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        """At least one, all of one group."""
        self.role, self.group = upstreams[0].status.role, upstreams[0].status.group
        self.upstreams: list[Upstream] = []
        self.is_single = False
        """Whether there is only one replica."""
        for upstream in upstreams:
            self.add(upstream)

    def add(self, upstream: Upstream) -> None:
        """Adds a replica."""
        self.upstreams.append(upstream)
        self.is_single = len(self.upstreams) == 1

    def remove(self, upstream: Upstream) -> None:
        """Removes a replica for good; it must have no running requests."""
        self.upstreams.remove(upstream)
        self.is_single = len(self.upstreams) == 1

    @property
    def facts(self) -> WorkerFacts:
        """Those of a ready replica, for what all have in common (names, limits, request fields).

        The next call may give others: who answers a request keeps those that it was checked against.
        """
        for one in self.upstreams:
            if one.status.state is WorkerState.READY:
                return one.status.facts
        return self.upstreams[0].status.facts

    @property
    def is_ready(self) -> bool:
        """Whether a replica takes requests."""
        return any(one.is_ready for one in self.upstreams)

    def has_ready(self, without: Collection[Life]) -> bool:
        """Whether one takes requests that is not of `without`."""
        return any(one.is_ready and one.life not in without for one in self.upstreams)

    def may_have_ready(self) -> bool:
        """Whether one runs or is about to: not while the service stops, nor behind the last restart."""
        return any(one.status.state in _RUN_OR_WILL or one.status.is_awaited for one in self.upstreams)

    @property
    def num_free_in_background(self) -> int:
        """Slots that background requests would get at once."""
        return sum(one.admission.num_free_in_background for one in self.upstreams if one.is_ready)

    def free_in_background(self, client: str) -> int:
        """Slots that background requests of this client would get at once, or next before those of others."""
        return sum(one.admission.free_in_background(client) for one in self.upstreams if one.is_ready)

    def check_ready(self, facts: WorkerFacts) -> None:
        """503 with the worker's state unless a replica takes requests, or is about to and its requests are known."""
        if facts.loads_on_demand and self.upstreams[0].status.is_awaited:
            return
        if not self.is_ready and not (self._is_coming(()) and facts.request_fields is not None):
            self.upstreams[0].check_ready()

    def routed(
        self,
        path: str,
        body: bytes,
        model: str | None,
        num_sequences: int,
        max_tokens: int | None,
        salt: str = "",
        client: str = "",
        *,
        is_more: bool = False,
    ) -> RoutedRequest:
        """Routing data of a request. Raises ApiError 422 for one that is known to crash workers."""
        raise NotImplementedError

    def slot(self, request: RoutedRequest, without: Collection[Life], *, background: bool) -> Slot:
        """A slot at a replica, `without` those that failed this request and were not restarted since."""
        raise NotImplementedError

    async def introduced(self) -> WorkerFacts:
        """The facts, with what only the engine knows: of a model that was never loaded it is awaited.

        Raises ApiError where it can't be loaded.
        """
        raise NotImplementedError

    async def died(self, request: RoutedRequest, death: Life) -> bool:
        """The worker died with this request in flight; whether the request is refused from now on."""
        raise NotImplementedError

    def observe(self) -> None:
        """Applies state changes written by the supervisor."""
        for upstream in self.upstreams:
            upstream.observe()

    def _is_coming(self, without: Collection[Life]) -> bool:
        """Whether a replica is restarting, or will be (its failure may not have been noticed yet)."""
        return not self.is_single and any(
            one.status.state is WorkerState.RESTARTING or (one.is_ready and one.life in without)
            for one in self.upstreams
        )
