"""Replicas in a gateway process: it knows the workers and requests slots from the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from qserve.gateway.processes.channel import Channel
from qserve.gateway.relay.replica_set import routed
from qserve.gateway.relay.replicas import Replicas, RoutedRequest
from qserve.gateway.relay.upstream import Life, Upstream
from qserve.gateway.routing.router import RequestTokens
from qserve.worker.base import WorkerFacts

__all__ = ["RemoteReplicas"]

_LOOK_S = 0.02
# The coordinator pushes what has changed fifty times a second.
_PUSHED_S = 1.0


class RemoteReplicas(Replicas):
    """Workers of one group. Blocks and digests are hashed here: all processes have the same PYTHONHASHSEED."""

    def __init__(self, upstreams: Sequence[Upstream], channel: Channel) -> None:
        self._channel = channel
        self.free = 0
        """Free background slots, as last reported by the coordinator, less those requested since."""
        self.free_of: dict[str, int] = {}
        """The same of clients that have work there; of all others `free`."""
        super().__init__(upstreams)

    @property
    def num_free_in_background(self) -> int:
        return max(0, self.free)

    def free_in_background(self, client: str) -> int:
        return max(0, self.free_of.get(client, self.free))

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
        return routed(
            path, body, model, num_sequences, max_tokens, salt, client, is_single=self.is_single, is_more=is_more
        )

    def slot(self, request: RoutedRequest, without: Collection[Life] = (), *, background: bool = False) -> _RemoteSlot:
        return _RemoteSlot(self, self._channel, request, without, background)

    async def introduced(self) -> WorkerFacts:
        await self._channel.request("introduced", self.group)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PUSHED_S):
                while self.facts.request_fields is None:
                    await asyncio.sleep(_LOOK_S)
        return self.facts

    async def died(self, request: RoutedRequest, death: Life) -> bool:
        return bool(await self._channel.request("died", self.group, request.digest, death))

    def named(self, name: str) -> Upstream:
        """The replica of this name."""
        return next(one for one in self.upstreams if one.name == name)


class _RemoteSlot:
    """A slot that the coordinator holds under a number until it is given back."""

    __slots__ = ("_asked", "_background", "_channel", "_counts", "_number", "_replicas", "_without", "upstream")

    def __init__(
        self,
        replicas: RemoteReplicas,
        channel: Channel,
        request: RoutedRequest,
        without: Collection[Life],
        background: bool,
    ) -> None:
        self._replicas = replicas
        self._channel = channel
        self._asked = request
        self._without = list(without)
        self._background = background
        self._counts: tuple[int, int, float | None] | None = None

    async def __aenter__(self) -> Self:
        request, channel = self._asked, self._channel
        free = self._replicas.free_of
        free[request.client] = free.get(request.client, self._replicas.free) - request.num_sequences
        self._replicas.free -= request.num_sequences
        self._number, granted = channel.send_request(
            "slot",
            self._replicas.group,
            self._without,
            request.digest,
            request.blocks,
            request.num_bytes,
            request.num_sequences,
            request.max_tokens,
            self._background,
            request.client,
            request.is_more,
            None if request.deadline is None else request.deadline.to_json(),
            request.is_urgent,
            request.is_portion,
        )
        try:
            self.upstream = self._replicas.named(await granted)
        except asyncio.CancelledError:
            channel.forget(self._number)
            channel.notify("left", self._number, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.notify("left", self._number, self._counts)

    def has_begun(self) -> None:
        self._channel.notify("begun", self._number)

    def is_answered(self, tokens: RequestTokens, first_token_s: float | None) -> None:
        self._counts = (tokens.prompt, tokens.answer, first_token_s)
