"""What each attribute of a reward is worth on preferences: its own accuracy and margin, as if it were the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qserve.reward.evaluation.accuracy import Accuracy, evaluate
from qserve.reward.evaluation.records import Record

__all__ = ["by_attribute"]


def by_attribute(records: Sequence[Record], values: Sequence[Sequence[Mapping[str, float]]]) -> tuple[Accuracy, ...]:
    """One entry for each attribute, in the model's order; none where the model has none.

    `values` are those of each record's contents, by attribute.
    """
    names = list(values[0][0]) if values and values[0] else []
    return tuple(
        replace(evaluate(records, [[one[name] for one in row] for row in values]).overall, name=name) for name in names
    )
