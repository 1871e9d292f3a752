"""One choice among replicas: prefix affinity within a bound on the difference of loads, else the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "choose", "slack_tokens"]

_LEAST_SLACK_REQUESTS = 4
_SLACK_SHARE = 0.25
# Shorter common prefixes do not count.
_LEAST_MATCHED_BYTES = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that takes requests: its outstanding tokens, and the bytes of this prompt that it has in its cache."""

    name: str
    num_tokens: int
    num_matched_bytes: int = 0


def slack_tokens(max_num_seqs: int, tokens_per_request: float) -> float:
    """How many more tokens than the least loaded a replica may have and still be chosen for its cache."""
    return max(_LEAST_SLACK_REQUESTS, _SLACK_SHARE * max_num_seqs) * tokens_per_request


def choose(candidates: Sequence[Candidate], slack: float) -> Candidate:
    """The chosen replica; the first of equal ones.

    Those whose load is within `slack` of the least may win by the longest match. A prefix that everybody shares
    therefore spreads: its replica fills up to the bound, the next one is asked, and has seen it from then on.
    """
    least = min(one.num_tokens for one in candidates)
    near = [one for one in candidates if one.num_tokens <= least + slack]
    longest = max(one.num_matched_bytes for one in near)
    if longest >= _LEAST_MATCHED_BYTES:
        near = [one for one in near if one.num_matched_bytes == longest]
    return min(near, key=lambda one: one.num_tokens)
