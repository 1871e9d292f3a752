"""The router of one role: outstanding tokens and known prefixes of each replica, and the choice of the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from qserve.engine.base import WorkerLoad
from qserve.gateway.routing.choice import Candidate, choose, slack_tokens
from qserve.gateway.routing.outstanding import RequestTokens, TokenEstimates
from qserve.gateway.routing.prefix import BLOCK_BYTES, PrefixTable

__all__ = ["Router"]


@dataclass(slots=True)
class _Replica:
    load: WorkerLoad
    max_num_seqs: int
    seen: PrefixTable = field(default_factory=PrefixTable)


class Router:
    """Counts outstanding tokens and remembers prefixes by replica name. Pure: the caller reports events."""

    def __init__(self) -> None:
        self.estimates = TokenEstimates()
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0

    def add(self, name: str, max_num_seqs: int, load: WorkerLoad) -> None:
        """Add a replica, whose outstanding work is counted in `load` from now on."""
        self._replicas[name] = _Replica(load, max_num_seqs)

    def limit(self, name: str, max_num_seqs: int) -> None:
        """Change the limit of a replica."""
        self._replicas[name].max_num_seqs = max_num_seqs

    def remove(self, name: str) -> None:
        """Remove a replica for good."""
        self._replicas.pop(name, None)

    def forget(self, name: str) -> None:
        """The replica was restarted: its cache is empty."""
        replica = self._replicas[name]
        replica.seen.clear()
        replica.load.num_prefix_blocks = 0

    def choose(self, blocks: Sequence[int], among: Collection[str]) -> Candidate:
        """The replica for a prompt of these blocks, chosen `among` those that take requests (at least one)."""
        names = list(among)
        self._turn += 1  # rotates, so that equal replicas take turns
        shift = self._turn % len(names)
        candidates = [self._candidate(name, blocks) for name in (*names[shift:], *names[:shift])]
        slots = min(self._replicas[name].max_num_seqs for name in names)
        return choose(candidates, slack_tokens(slots, self._tokens_per_request(names)))

    def begin(self, name: str, blocks: Sequence[int], tokens: RequestTokens) -> RequestTokens:
        """The replica gets this request; returns the tokens that count: cached ones do not."""
        replica = self._replicas[name]
        load = replica.load
        if blocks:
            cached = int(replica.seen.num_matched(blocks) * BLOCK_BYTES / self.estimates.bytes_per_token)
            load.num_matched_tokens += min(cached, tokens.prompt)
            tokens = RequestTokens(max(1, tokens.prompt - cached), tokens.answer)
            replica.seen.add(blocks)
            load.num_prefix_blocks = len(replica.seen)
        load.num_outstanding_tokens += tokens.prompt + tokens.answer
        load.num_outstanding_requests += 1
        return tokens

    def has_done(self, name: str, num_tokens: int) -> None:
        """So many of its outstanding tokens are done."""
        if name in self._replicas:
            self._replicas[name].load.num_outstanding_tokens -= num_tokens

    def end(self, name: str, num_tokens: int) -> None:
        """A request ended with so many tokens outstanding."""
        if name in self._replicas:
            load = self._replicas[name].load
            load.num_outstanding_tokens -= num_tokens
            load.num_outstanding_requests -= 1

    def _tokens_per_request(self, names: Sequence[str]) -> float:
        """Mean over the running requests."""
        loads = [self._replicas[name].load for name in names]
        count = sum(one.num_outstanding_requests for one in loads)
        return sum(one.num_outstanding_tokens for one in loads) / count if count else 0.0

    def _candidate(self, name: str, blocks: Sequence[int]) -> Candidate:
        replica = self._replicas[name]
        return Candidate(name, replica.load.num_outstanding_tokens, replica.seen.num_matched(blocks) * BLOCK_BYTES)
