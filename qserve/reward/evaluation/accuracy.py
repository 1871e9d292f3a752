"""Accuracy of a reward model on preference data, by subset, from rewards that were computed elsewhere.

A preference is right when every chosen answer has a higher reward than every rejected one; equal rewards are ties, and
so are equal texts. No tie is right; their number is told. The file's shape says what is asked (`Shape`):

    pairs         one chosen, one rejected
    best-of-n     RewardBench 2: one chosen among four (or several: all of them above all others, as its Ties are)
    rm-bench      three styles each (concise, detailed, detailed with markdown), in that order. Normal: same style;
                  hard: the rejected answer has the more elaborate style; easy: the chosen one has it
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qserve.confidence import wilson_interval
from qserve.errors import UsageError
from qserve.reward.evaluation.records import Record

__all__ = ["Accuracy", "PreferenceReport", "Shape", "by_attribute", "evaluate", "histogram", "shape_of"]

Shape = Literal["pairs", "best-of-n", "rm-bench"]
_STYLES = 3
_NO_SUBSET = "all"


@dataclass(frozen=True)
class Accuracy:
    """`num_right` of `num_asked`; `low` and `high` bound the share in the long run (Wilson, 95 %)."""

    name: str
    num_asked: int
    num_right: int
    num_tied: int
    accuracy: float
    low: float
    high: float
    mean_margin: float


@dataclass(frozen=True)
class PreferenceReport:
    """`subsets` by name, `overall` over all preferences, `mean_of_subsets` each subset counting the same.

    `levels` are RM-Bench's easy, normal and hard. `margins` are the lowest chosen reward minus the highest rejected
    one, per preference (per comparison in RM-Bench). `chance` is what guessing would get.
    """

    shape: Shape
    overall: Accuracy
    subsets: tuple[Accuracy, ...]
    mean_of_subsets: float
    levels: tuple[Accuracy, ...]
    margins: tuple[float, ...]
    chance: float


def shape_of(records: Sequence[Record]) -> Shape:
    """What the file asks. Raises UsageError for a line without a preference, and for shapes that are mixed."""
    without = next((record for record in records if record.num_chosen is None), None)
    if without is not None:
        raise UsageError(f"line {without.line} is not a preference: it needs chosen and rejected")
    shapes = {_shape(record) for record in records}
    if shapes == {"pairs", "best-of-n"}:
        return "best-of-n"
    if len(shapes) > 1:
        raise UsageError(f"the file mixes {' and '.join(sorted(shapes))}; put each in its own file")
    return shapes.pop()


def _shape(record: Record) -> Shape:
    chosen = record.num_chosen or 0
    rejected = len(record.contents) - chosen
    if (chosen, rejected) == (1, 1):
        return "pairs"
    # RewardBench 2 has three correct answers now and then; RM-Bench alone has no `subset` and always three of each.
    is_matrix = (chosen, rejected) == (_STYLES, _STYLES) and "subset" not in record.data
    return "rm-bench" if is_matrix else "best-of-n"


def evaluate(records: Sequence[Record], rewards: Sequence[Sequence[float]]) -> PreferenceReport:
    """The report; `rewards` are those of each record's contents. Equal texts are a tie, whatever their rewards are."""
    shape = shape_of(records)
    margins: dict[str, list[float]] = defaultdict(list)
    levels: dict[str, list[float]] = defaultdict(list)
    for record, given in zip(records, rewards, strict=True):
        values = record.alike(given)
        chosen, rejected = values[: record.num_chosen], values[record.num_chosen :]
        subset = margins[record.subset or _NO_SUBSET]
        if shape != "rm-bench":
            subset.append(min(chosen) - max(rejected))
            continue
        for style, good in enumerate(chosen):
            for other, bad in enumerate(rejected):
                level = "normal" if style == other else "hard" if style < other else "easy"
                levels[level].append(good - bad)
                subset.append(good - bad)
    every = [margin for group in margins.values() for margin in group]
    subsets = tuple(_accuracy(name, group) for name, group in sorted(margins.items()))
    mean = sum(subset.accuracy for subset in subsets) / len(subsets)
    by_level = tuple(_accuracy(name, levels[name]) for name in ("easy", "normal", "hard") if name in levels)
    return PreferenceReport(
        shape, _accuracy("overall", every), subsets, mean, by_level, tuple(every), _chance(records, shape)
    )


def _accuracy(name: str, margins: Sequence[float]) -> Accuracy:
    right, tied = sum(margin > 0 for margin in margins), sum(margin == 0 for margin in margins)
    low, high = wilson_interval(right, len(margins))
    return Accuracy(name, len(margins), right, tied, right / len(margins), low, high, sum(margins) / len(margins))


def _chance(records: Sequence[Record], shape: Shape) -> float:
    """Probability that scores drawn at random put all chosen answers above all rejected ones, averaged."""
    if shape == "rm-bench":
        return 0.5
    ways = [1 / math.comb(len(record.contents), record.num_chosen or 0) for record in records]
    return sum(ways) / len(ways)


def histogram(values: Sequence[float], num_bins: int = 12, width: int = 40) -> list[str]:
    """Lines of text: each bin's lower edge, a bar, its count. Zero is an edge, so that no bin holds right and wrong."""
    lowest, highest = min(values), max(values)
    step = _round_step((highest - lowest) / num_bins) if highest > lowest else 1.0
    counts: Mapping[int, int] = _counted(values, step)
    bins = range(min(counts), max(counts) + 1)
    longest = max(counts.values())
    return [
        f"{index * step:>9.4g}  {'█' * round(width * counts.get(index, 0) / longest):<{width}}  {counts.get(index, 0)}"
        for index in bins
    ]


def _counted(values: Sequence[float], step: float) -> dict[int, int]:
    counts: dict[int, int] = defaultdict(int)
    for value in values:
        counts[math.floor(value / step)] += 1
    return counts


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def by_attribute(records: Sequence[Record], values: Sequence[Sequence[Mapping[str, float]]]) -> tuple[Accuracy, ...]:
    """Each attribute as if it were the reward, in the model's order; empty where the model has none.

    `values` are those of each record's contents, by attribute.
    """
    names = list(values[0][0]) if values and values[0] else []
    return tuple(
        replace(evaluate(records, [[one[name] for one in row] for row in values]).overall, name=name) for name in names
    )
