"""The router of one role: what every replica has to do and has seen, and who is asked next."""

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
    """Counts outstanding tokens and remembers prefixes, by the replicas' names. Pure: the caller says what happens."""

    def __init__(self) -> None:
        self.estimates = TokenEstimates()
        self._replicas: dict[str, _Replica] = {}
        self._turn = 0

    def add(self, name: str, max_num_seqs: int) -> None:
        """A replica that may be asked, or one whose limit changed."""
        if name in self._replicas:
            self._replicas[name].max_num_seqs = max_num_seqs
        else:
            self._replicas[name] = _Replica(max_num_seqs)

    def remove(self, name: str) -> None:
        """It will not come back."""
        self._replicas.pop(name, None)

    def forget(self, name: str) -> None:
        """It was restarted: what it had seen is gone."""
        self._replicas[name].seen.clear()

    def num_tokens(self, name: str) -> int:
        """What it has yet to read and write."""
        return self._replicas[name].num_tokens if name in self._replicas else 0

    def num_requests(self, name: str) -> int:
        """Those that it was given and that are not over."""
        return self._replicas[name].num_requests if name in self._replicas else 0

    def num_blocks(self, name: str) -> int:
        """What is remembered of it."""
        return len(self._replicas[name].seen) if name in self._replicas else 0

    def num_matched(self, name: str) -> int:
        """Prompt tokens that it was given and is known to have seen before, ever: what its cache should have had."""
        return self._replicas[name].num_matched if name in self._replicas else 0

    def choose(self, blocks: Sequence[int], among: Collection[str]) -> Candidate:
        """Whom to ask a prompt of these blocks; `among` are replicas that take requests, at least one."""
        names = list(among)
        self._turn += 1  # of equal replicas each is the first in its turn
        shift = self._turn % len(names)
        candidates = [self._candidate(name, blocks) for name in (*names[shift:], *names[:shift])]
        slots = min(self._replicas[name].max_num_seqs for name in names)
        return choose(candidates, slack_tokens(slots, self._tokens_per_request(names)))

    def begin(self, name: str, blocks: Sequence[int], tokens: RequestTokens) -> RequestTokens:
        """It is given this request; returns what of it counts: what it has seen it need not read again."""
        replica = self._replicas[name]
        cached = replica.seen.num_matched(blocks) * BLOCK_BYTES / self.estimates.bytes_per_token
        replica.num_matched += min(int(cached), tokens.prompt)
        tokens = RequestTokens(max(1, tokens.prompt - int(cached)), tokens.answer)
        replica.num_tokens += tokens.total
        replica.num_requests += 1
        replica.seen.add(blocks)
        return tokens

    def has_done(self, name: str, num_tokens: int) -> None:
        """So many of the tokens that it was given are read."""
        if name in self._replicas:
            self._replicas[name].num_tokens -= num_tokens

    def end(self, name: str, num_tokens: int) -> None:
        """A request of which so many tokens were left is over, or not wanted any more."""
        if name in self._replicas:
            self._replicas[name].num_tokens -= num_tokens
            self._replicas[name].num_requests -= 1

    def _tokens_per_request(self, names: Sequence[str]) -> float:
        """Of those that are outstanding now: what was usual a while ago says little about them."""
        replicas = [self._replicas[name] for name in names]
        count = sum(one.num_requests for one in replicas)
        return sum(one.num_tokens for one in replicas) / count if count else 0.0

    def _candidate(self, name: str, blocks: Sequence[int]) -> Candidate:
        replica = self._replicas[name]
        return Candidate(name, replica.num_tokens, replica.seen.num_matched(blocks) * BLOCK_BYTES)
