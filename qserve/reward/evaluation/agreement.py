"""How far two lists of scores of the same texts are apart: differences, ranks, preferences that turn around."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

__all__ = ["Agreement", "agreement", "rank_correlation"]

# All pairs of a long list are more than anybody waits for: then each text is compared with this many after it.
_NEIGHBOURS = 500


@dataclass(frozen=True)
class Agreement:
    """Measured scores against true ones.

    `num_flipped` of `num_pairs` are in the other order than the true scores have them; equal ones count neither way.
    `spread` is the standard deviation of the true scores: what a difference is to be held against. `rank_correlation`
    is Spearman's, nan where all scores are equal.
    """

    num_texts: int
    largest_difference: float
    mean_difference: float
    spread: float
    rank_correlation: float
    num_pairs: int
    num_flipped: int


def agreement(
    measured: Sequence[float], true: Sequence[float], pairs: Iterable[tuple[int, int]] | None = None
) -> Agreement:
    """Of at least one text. `pairs` are indices of texts that somebody compares; None: all of them."""
    differences = [abs(a - b) for a, b in zip(measured, true, strict=True)]
    mean = sum(true) / len(true)
    compared = list(pairs) if pairs is not None else list(_all_pairs(len(true)))
    compared = [(i, j) for i, j in compared if true[i] != true[j]]
    flipped = sum((true[i] - true[j]) * (measured[i] - measured[j]) < 0 for i, j in compared)
    return Agreement(
        num_texts=len(true),
        largest_difference=max(differences),
        mean_difference=sum(differences) / len(differences),
        spread=math.sqrt(sum((value - mean) ** 2 for value in true) / len(true)),
        rank_correlation=rank_correlation(measured, true),
        num_pairs=len(compared),
        num_flipped=flipped,
    )


def _all_pairs(count: int) -> Iterable[tuple[int, int]]:
    if count <= 2 * _NEIGHBOURS:
        return combinations(range(count), 2)
    return ((i, j) for i in range(count) for j in range(i + 1, min(count, i + 1 + _NEIGHBOURS)))


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: the correlation of the ranks, equal values sharing the mean of theirs."""
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    mean = (len(a) - 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(ranks_a, ranks_b, strict=True))
    spread_a = math.sqrt(sum((x - mean) ** 2 for x in ranks_a))
    spread_b = math.sqrt(sum((y - mean) ** 2 for y in ranks_b))
    return covariance / (spread_a * spread_b) if spread_a and spread_b else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for index in order[start : end + 1]:
            ranks[index] = (start + end) / 2
        start = end + 1
    return ranks
