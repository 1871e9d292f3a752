"""How good a trained reward model is on held-out rows: of pairs by length, how sure it is, whether it likes length; of
scores by label.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.confidence import wilson_interval
from qserve.reward.evaluation.agreement import rank_correlation
from qserve.reward.evaluation.calibration import calibration
from qserve.reward.evaluation.length_bias import length_bias
from qserve.training.data.scores import STEPS

__all__ = ["LabelQuality", "LengthBucket", "buckets_by_length", "quality_in"]

_BUCKETS = 4
_LEAST_PAIRS = 10


@dataclass(frozen=True)
class LengthBucket:
    """Pairs whose longer side has from `shortest` to `longest` tokens; `low` and `high` bound the accuracy (95 %)."""

    shortest: int
    longest: int
    count: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class LabelQuality:
    """`mse` of the model's scores, and `mean_mse` of the rows' mean score in their place: what knowing nothing gives.

    `rank_correlation` is Spearman's; None where all rows have one score.
    """

    name: str
    count: int
    mse: float
    mean_mse: float
    rank_correlation: float | None


def quality_in(file: Path, labels: Sequence[str] = ()) -> dict[str, Any] | None:
    """Of what process/held_out.py wrote; None where there is nothing. `labels` name the scores of a row, if it has."""
    rows = [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
    if not rows:
        return None
    if labels == STEPS:
        pairs = [pair for row in rows for pair in zip(row["scores"], row["given"], strict=True)]
        steps = [{"scores": [true], "given": [given]} for true, given in pairs]
        return {"by_label": [asdict(_label_quality("good step", 0, steps))]}
    if labels:
        return {"by_label": [asdict(_label_quality(name, index, rows)) for index, name in enumerate(labels)]}
    bias = length_bias(
        [(row["chosen"], row["rejected"]) for row in rows],
        [(row["chosen_tokens"], row["rejected_tokens"]) for row in rows],
        [1] * len(rows),
    )
    return {
        "by_length": [asdict(one) for one in buckets_by_length(rows)],
        "calibration": asdict(calibration([row["chosen"] - row["rejected"] for row in rows])),
        "length_bias": asdict(bias),
    }


def _label_quality(name: str, index: int, rows: Sequence[Mapping[str, Any]]) -> LabelQuality:
    true, given = [row["scores"][index] for row in rows], [row["given"][index] for row in rows]
    mean = sum(true) / len(true)
    correlation = rank_correlation(given, true)
    return LabelQuality(
        name,
        len(rows),
        sum((a - b) ** 2 for a, b in zip(given, true, strict=True)) / len(rows),
        sum((one - mean) ** 2 for one in true) / len(rows),
        correlation if math.isfinite(correlation) else None,
    )


def buckets_by_length(rows: Sequence[Mapping[str, Any]]) -> tuple[LengthBucket, ...]:
    """Up to four of about as many pairs each, ten at least; pairs of one length stay together."""
    ordered = sorted(rows, key=_longer)
    size = max(_LEAST_PAIRS, -(-len(ordered) // _BUCKETS))
    groups: list[list[Mapping[str, Any]]] = []
    for row in ordered:
        if not groups or (len(groups[-1]) >= size and _longer(row) != _longer(groups[-1][-1])):
            groups.append([])
        groups[-1].append(row)
    return tuple(map(_bucket, groups))


def _longer(row: Mapping[str, Any]) -> int:
    return max(int(row["chosen_tokens"]), int(row["rejected_tokens"]))


def _bucket(rows: Sequence[Mapping[str, Any]]) -> LengthBucket:
    right = sum(row["chosen"] > row["rejected"] for row in rows)
    low, high = wilson_interval(right, len(rows))
    return LengthBucket(_longer(rows[0]), _longer(rows[-1]), len(rows), right / len(rows), low, high)
