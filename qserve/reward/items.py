"""Items to score, and their scores. No torch: the gateway may import this."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Score", "ScoreItem", "ScorerStats", "TokenizedText", "firsts_of"]


@dataclass(frozen=True)
class TokenizedText:
    """Token ids as the model is to see them, at most `max_length`; `truncated`: some were cut off to get there."""

    token_ids: list[int]
    truncated: bool


@dataclass(frozen=True)
class ScoreItem:
    """One text to score.

    Attributes:
        token_ids: the whole text, prompt and answer, at least one token.
        positions: where to read the head, as indices into `token_ids`; None: where the model's pooling says. With
            several of them each gives a step, and the last one the reward.
        shared_prefix: how many leading tokens the item has in common with others of its request (the prompt in
            best-of-n). A hint that never changes a score: items that begin with the same tokens are computed once for
            these. 0: nothing is known.
        truncated: what `TokenizedText` said; it is handed on to the score.
    """

    token_ids: list[int]
    positions: tuple[int, ...] | None = None
    shared_prefix: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class Score:
    """The reward of one item.

    Attributes:
        reward: the head's value, not normalised. Of a process reward model: the last step's probability of "good".
        steps: a process reward model's probability of "good" per step, or the values at the item's `positions`; else
            None.
        num_tokens: tokens of the item.
        truncated: as the item said.
        position: index of the token at which the reward was read (-1 for the mean over all tokens).
        attributes: the head's values in the order of its labels, where it has several; else None.
        vector: of an embedding model [size], in float32, as the head gives it; else None, and then the reward counts.
    """

    reward: float
    steps: tuple[float, ...] | None
    num_tokens: int
    truncated: bool
    position: int
    attributes: tuple[float, ...] | None = None
    vector: np.ndarray | None = field(default=None, compare=False, repr=False)


@dataclass
class ScorerStats:
    """Counts since the start. `num_computed_tokens` leaves out shared beginnings and counts padding."""

    num_items: int = 0
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_padding_tokens: int = 0
    num_rows: int = 0
    num_truncated: int = 0
    num_out_of_memory: int = 0
    busy_s: float = 0.0
    rows_of_items: dict[int, int] = field(default_factory=dict)
    """How many rows held that many texts."""


def firsts_of(items: Iterable[ScoreItem], start: int, known: dict[bytes, int]) -> list[int]:
    """Of each item the place of the first that has the same tokens and is read at the same ones: itself, mostly.

    Rows of other lengths round otherwise, so that equal texts could have unequal rewards; their first one's counts.
    `known` has the places of the items before these, of which there are `start`, and is added to.
    """
    places = []
    for place, item in enumerate(items, start):
        read = b"" if item.positions is None else array("q", item.positions).tobytes()
        key = blake2b(array("q", item.token_ids).tobytes() + b"/" + read, digest_size=16).digest()
        places.append(known.setdefault(key, place))
    return places
