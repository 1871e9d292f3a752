"""One gateway process in the coordinator: its requests that hold or wait for a slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from qserve.gateway.processes.channel import Channel
from qserve.gateway.processes.hosted_runs import MemberRuns
from qserve.gateway.processes.key_spending import MemberSpending
from qserve.gateway.processes.statuses import changing, document_of
from qserve.gateway.relay.deadline import Deadline
from qserve.gateway.relay.replica_set import ReplicaSet
from qserve.gateway.relay.replicas import RoutedRequest
from qserve.gateway.relay.upstream import Upstream
from qserve.gateway.routing.router import RequestTokens
from qserve.wire.errors import ApiError, internal_error

__all__ = ["Member"]

_log = logging.getLogger("qserve.gateway")


class _Unanswered(Exception):
    """The request ended without an answer: its duration must not count for the estimate."""


class _Ticket:
    """One request: a task that waits for its slot and holds it until `end`."""

    def __init__(self, member: Member, number: int, request: list[Any]) -> None:
        self._member = member
        self._number = number
        role, without, digest, blocks, num_bytes, num_sequences, max_tokens, background, client, *others = request
        is_more, until, *priority = others
        self._replicas = member.groups[role]
        lives = [(name, num_restarts) for name, num_restarts in without]
        deadline = None if until is None else Deadline.from_json(until)
        self._asked = RoutedRequest(
            tuple(blocks), num_bytes, num_sequences, max_tokens, digest, client, is_more, deadline, *priority
        )
        self._slot = self._replicas.slot(self._asked, lives, background=background)
        self._ended: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self._is_granted = False
        self._task = asyncio.create_task(self._hold())

    def has_begun(self) -> None:
        """The first byte of the answer has arrived."""
        if self._is_granted:
            self._slot.has_begun()

    def end(self, counts: list[Any] | None) -> None:
        """Release the slot; `counts`: the tokens that the worker reported and the time to the first, as `is_answered`
        has them; None without an answer.
        """
        if not self._is_granted:
            self._task.cancel()
        elif not self._ended.done():
            self._ended.set_result(counts)

    async def _hold(self) -> None:
        channel = self._member.channel
        try:
            self._replicas.poison.check(self._asked.digest)
            async with self._slot:
                self._is_granted = True
                self._member.push(self._slot.upstream)  # the process must know if the worker has just come back
                channel.answer(self._number, self._slot.upstream.name)
                counts = await self._ended
                if counts is None:
                    raise _Unanswered
                *tokens, first_token_s = counts
                self._slot.is_answered(RequestTokens(*tokens), first_token_s)
        except ApiError as error:
            channel.refuse(self._number, error)
        except _Unanswered:
            pass
        except Exception:
            _log.exception("a request of a gateway process was given no slot")
            channel.refuse(self._number, internal_error())
        finally:
            self._member.tickets.pop(self._number, None)


class Member:
    """A gateway process, from its start to its end."""

    def __init__(
        self, name: str, channel: Channel, groups: Mapping[str, ReplicaSet], runs: MemberRuns, spending: MemberSpending
    ) -> None:
        self.name = name
        self.spending = spending
        """What its requests of named keys take."""
        self.runs = runs
        """Its background responses."""
        self.channel = channel
        self.groups = groups
        self.tickets: dict[int, _Ticket] = {}
        self.num_awaited: dict[str, int] = {}
        """Its requests that wait for bytes of a worker, by worker name."""
        self.num_in_flight = 0
        """Requests in flight, as last reported."""
        self.metrics: dict[str, Any] = {}
        """Its metrics, as last reported."""
        self.pid: int | None = None
        self.is_up = asyncio.Event()
        """It accepts connections."""
        self.num_heard = 0
        """Number of messages received."""
        self.gone = asyncio.Event()
        """Set when its socket is closed and all its messages were handled."""
        self._pushed: dict[str, tuple[Any, ...]] = {}

    def enter(self, number: int, request: list[Any]) -> None:
        """Request a slot; answered with the name of the worker."""
        self.tickets[number] = _Ticket(self, number, request)

    def push(self, upstream: Upstream) -> None:
        """Send the changes of this worker's status since the last time."""
        status = upstream.status
        now = changing(status)
        if self._pushed.get(status.name) != now:
            self._pushed[status.name] = now
            self.channel.notify("worker", document_of(status))

    def left(self, number: int, counts: list[Any] | None) -> None:
        """Give a slot back, or withdraw its request."""
        if ticket := self.tickets.get(number):
            ticket.end(counts)

    def begun(self, number: int) -> None:
        """The first byte of a request's answer has arrived."""
        if ticket := self.tickets.get(number):
            ticket.has_begun()

    def up(self, pid: int) -> None:
        """It accepts connections."""
        self.pid = pid
        self.is_up.set()

    def counted(self, metrics: dict[str, Any]) -> None:
        """Store its current metrics."""
        self.metrics = metrics

    def knows(self, upstreams: Sequence[Upstream]) -> None:
        """Note the state of these workers as sent."""
        self._pushed |= {one.name: changing(one.status) for one in upstreams}

    def push_all(self, upstreams: Sequence[Upstream]) -> None:
        for upstream in upstreams:
            self.push(upstream)

    def leave(self) -> None:
        """The process is gone: free its slots."""
        for ticket in list(self.tickets.values()):
            ticket.end(None)
        self.spending.leave()
