"""Does a reward model like long answers? Rewards against lengths within each preference: prompts do not count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qserve.reward.evaluation.agreement import rank_correlation

__all__ = ["LengthBias", "length_bias"]


@dataclass(frozen=True)
class LengthBias:
    """Over all answers of all preferences.

    `correlation` is Spearman's of reward and tokens, both less their preference's mean; nan where either never differs.
    `accuracy_longer` and `accuracy_shorter` are those of preferences whose chosen answers are the longer or the shorter
    ones on average (None without any), `num_longer` and `num_shorter` their counts.
    """

    correlation: float
    num_longer: int
    num_shorter: int
    accuracy_longer: float | None
    accuracy_shorter: float | None


def length_bias(
    rewards: Sequence[Sequence[float]], lengths: Sequence[Sequence[int]], num_chosen: Sequence[int]
) -> LengthBias:
    """Of each preference's answers: rewards, tokens, and how many of them come first as the chosen ones."""
    centred = [_centred(one) for one in rewards], [_centred(one) for one in lengths]
    longer: list[bool] = []
    shorter: list[bool] = []
    for values, tokens, count in zip(rewards, lengths, num_chosen, strict=True):
        difference = _mean(tokens[:count]) - _mean(tokens[count:])
        is_right = min(values[:count]) > max(values[count:])
        if difference:
            (longer if difference > 0 else shorter).append(is_right)
    flat = [[value for one in side for value in one] for side in centred]
    correlation = rank_correlation(flat[0], flat[1]) if len(flat[0]) > 1 else math.nan
    return LengthBias(correlation, len(longer), len(shorter), _share(longer), _share(shorter))


def _centred(values: Sequence[float]) -> list[float]:
    return [value - _mean(values) for value in values]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share(right: Sequence[bool]) -> float | None:
    return sum(right) / len(right) if right else None
