"""Is a reward model as sure as it is right? Its margins as probabilities (Bradley and Terry) against what came true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Calibration", "CalibrationBin", "calibration"]

_NUM_BINS = 10


@dataclass(frozen=True)
class CalibrationBin:
    """Preferences whose confidence lies in [low, high): how sure on average, and how often right."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """The reliability curve, of bins that hold something. `error` is the expected calibration error: the mean distance
    of confidence and accuracy, each bin by its count. `log_loss` of the probabilities, in nats."""

    bins: tuple[CalibrationBin, ...]
    error: float
    log_loss: float


def calibration(margins: Sequence[float], num_bins: int = _NUM_BINS) -> Calibration:
    """Of margins (chosen less rejected), at least one.

    The probability that the chosen answer is preferred is the margin's sigmoid; confidence is that of whichever answer
    the model prefers, so from 0.5 to 1. A tie is half right.
    """
    sure = [_sigmoid(abs(margin)) for margin in margins]
    right = [0.5 if margin == 0 else float(margin > 0) for margin in margins]
    width = 0.5 / num_bins
    bins = []
    for number in range(num_bins):
        low = 0.5 + number * width
        inside = [i for i, value in enumerate(sure) if _bin(value, width, num_bins) == number]
        if inside:
            confidence = sum(sure[i] for i in inside) / len(inside)
            accuracy = sum(right[i] for i in inside) / len(inside)
            bins.append(CalibrationBin(round(low, 6), round(low + width, 6), len(inside), confidence, accuracy))
    error = sum(one.count * abs(one.confidence - one.accuracy) for one in bins) / len(margins)
    loss = sum(_softplus(-margin) for margin in margins) / len(margins)
    return Calibration(tuple(bins), error, loss)


def _bin(value: float, width: float, num_bins: int) -> int:
    return min(num_bins - 1, int((value - 0.5) / width))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
