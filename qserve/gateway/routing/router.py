"""The router of one role: outstanding tokens and known prefixes of each replica, and the choice of the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from qserve.gateway.routing.choice import Candidate, choose, slack_tokens
from qserve.gateway.routing.outstanding import RequestTokens, TokenEstimates
from qserve.gateway.routing.prefix import BLOCK_BYTES, PrefixTable

__all__ = ["Router"]


@dataclass(slots=True)
class _Replica:
    max_num_seqs: int
    num_tokens: int = 0
    num_requests: int = 0
    num_matched: int = 0
    seen: PrefixTable = field(default_factory=PrefixTable)


class Router:
    """Counts outstanding tokens and remembers prefixes by replica name. Pure: the caller reports events."""

    def __init__(self) -> None:
        self.estimates = TokenEstimates()
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0

    def add(self, name: str, max_num_seqs: int) -> None:
        """Add a replica, or change its limit."""
        if name in self._replicas:
            self._replicas[name].max_num_seqs = max_num_seqs
        else:
            self._replicas[name] = _Replica(max_num_seqs)

    def remove(self, name: str) -> None:
        """Remove a replica for good."""
        self._replicas.pop(name, None)

    def forget(self, name: str) -> None:
        """The replica was restarted: its cache is empty."""
        self._replicas[name].seen.clear()

    def num_tokens(self, name: str) -> int:
        """Outstanding tokens of a replica."""
        return self._replicas[name].num_tokens if name in self._replicas else 0

    def num_requests(self, name: str) -> int:
        """Running requests of a replica."""
        return self._replicas[name].num_requests if name in self._replicas else 0

    def num_blocks(self, name: str) -> int:
        """Remembered prefix blocks of a replica."""
        return len(self._replicas[name].seen) if name in self._replicas else 0

    def num_matched(self, name: str) -> int:
        """Total of prompt tokens that should have been in the replica's prefix cache."""
        return self._replicas[name].num_matched if name in self._replicas else 0

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
        cached = replica.seen.num_matched(blocks) * BLOCK_BYTES / self.estimates.bytes_per_token
        replica.num_matched += min(int(cached), tokens.prompt)
        tokens = RequestTokens(max(1, tokens.prompt - int(cached)), tokens.answer)
        replica.num_tokens += tokens.total
        replica.num_requests += 1
        replica.seen.add(blocks)
        return tokens

    def has_done(self, name: str, num_tokens: int) -> None:
        """So many of its outstanding tokens are done."""
        if name in self._replicas:
            self._replicas[name].num_tokens -= num_tokens

    def end(self, name: str, num_tokens: int) -> None:
        """A request ended with so many tokens outstanding."""
        if name in self._replicas:
            self._replicas[name].num_tokens -= num_tokens
            self._replicas[name].num_requests -= 1

    def _tokens_per_request(self, names: Sequence[str]) -> float:
        """Mean over the running requests."""
        replicas = [self._replicas[name] for name in names]
        count = sum(one.num_requests for one in replicas)
        return sum(one.num_tokens for one in replicas) / count if count else 0.0

    def _candidate(self, name: str, blocks: Sequence[int]) -> Candidate:
        replica = self._replicas[name]
        return Candidate(name, replica.num_tokens, replica.seen.num_matched(blocks) * BLOCK_BYTES)
