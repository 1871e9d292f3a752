"""The router of one model: outstanding tokens and known prefixes of each replica, and the choice of the next.

What a request costs in tokens is estimated before it is tokenized.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qserve.gateway.routing.choice import Candidate, choose, slack_tokens
from qserve.gateway.routing.prefix import BLOCK_BYTES, PrefixTable
from qserve.worker.base import WorkerLoad

__all__ = ["RequestTokens", "Router", "TokenEstimates"]

_BYTES_PER_TOKEN = 4.0
_FIRST_ANSWER_TOKENS = 256.0
_SMOOTHING = 0.1
# Means are kept by powers of two of max_tokens: long answers differ from short ones.
_UNBOUNDED = -1


class RequestTokens(NamedTuple):
    """Estimated tokens of one request: its prompt, and the answers of all its sequences."""

    prompt: int
    answer: int

    @property
    def total(self) -> int:
        return self.prompt + self.answer


class TokenEstimates:
    """Bytes and `max_tokens` to tokens, corrected by what workers reported of the requests before.

    Clients ask for many more tokens than answers have. So the answer is estimated as the mean of those with a
    `max_tokens` of the same magnitude, and as `max_tokens` itself (256 at most) before the first.
    """

    def __init__(self) -> None:
        self.bytes_per_token = _BYTES_PER_TOKEN
        self._answers: dict[int, float] = {}

    def of(self, num_bytes: int, num_sequences: int, max_tokens: int | None) -> RequestTokens:
        """The estimate for a body of `num_bytes` with `num_sequences` sequences."""
        first = min(_FIRST_ANSWER_TOKENS, max_tokens or _FIRST_ANSWER_TOKENS)
        answer = self._answers.get(_magnitude(max_tokens), first)
        if max_tokens is not None:
            answer = min(answer, max_tokens)
        return RequestTokens(max(1, round(num_bytes / self.bytes_per_token)), round(answer * num_sequences))

    def learn(self, num_bytes: int, num_sequences: int, max_tokens: int | None, tokens: RequestTokens) -> None:
        """Correct the estimates by the counts that the worker reported."""
        if tokens.prompt > 0:
            self.bytes_per_token += _SMOOTHING * (num_bytes / tokens.prompt - self.bytes_per_token)
        if tokens.answer > 0 and num_sequences > 0:
            each = tokens.answer / num_sequences
            key = _magnitude(max_tokens)
            before = self._answers.setdefault(key, each)
            self._answers[key] = before + _SMOOTHING * (each - before)


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


def _magnitude(max_tokens: int | None) -> int:
    return _UNBOUNDED if max_tokens is None else min(max_tokens, 1 << 30).bit_length()
