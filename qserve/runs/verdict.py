"""Whether a run learned to tell better answers from worse: against guessing, beyond chance; and what to do if not.

Pure: of a training run's document, as the store has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from qserve.confidence import wilson_interval

__all__ = ["Fault", "Verdict", "advice_on", "fault_of", "held_out_facts", "verdict_of", "warning_of"]

Verdict = Literal["better", "unclear", "worse"]
"""Than guessing, by the 95 % interval of the share of pairs that are right."""
Fault = Literal["worse", "unclear", "mean"]
_GUESSING = 0.5
_WARNINGS: dict[Fault, str] = {
    "worse": "This model is worse than guessing, which gets half of the pairs right.",
    "unclear": "{pairs:,} held-out pairs do not show that this model is better than guessing.",
    "mean": "This model predicts no score better than the mean of that score does.",
}
_LEARNED = 0.8
_LAST_POINTS = 20
_FEW_PAIRS = 50


def held_out_facts(held_out: Mapping[str, Any]) -> dict[str, Any]:
    """Of counted pairs: their share, its interval, the verdict; other counts as they are."""
    if not held_out.get("pairs"):
        return dict(held_out)
    right, pairs = held_out["right"], held_out["pairs"]
    low, high = wilson_interval(right, pairs)
    share = {"accuracy": right / pairs, "low": low, "high": high}
    return {"pairs": pairs, "right": right, **share, "verdict": verdict_of(held_out)}


def verdict_of(held_out: Mapping[str, Any]) -> Verdict | None:
    """Of counted pairs; None where there are none."""
    if not held_out.get("pairs"):
        return None
    low, high = wilson_interval(held_out["right"], held_out["pairs"])
    return "better" if low > _GUESSING else "worse" if high < _GUESSING else "unclear"


def fault_of(document: Mapping[str, Any]) -> Fault | None:
    """Of a model that learned nothing; None of one that did, or where nothing was held out."""
    verdict = verdict_of(document["held_out"])
    if verdict == "worse" or verdict == "unclear":
        return verdict
    labels = (document.get("quality") or {}).get("by_label", ())
    return "mean" if labels and all(one["mse"] >= one["mean_mse"] for one in labels) else None


def warning_of(document: Mapping[str, Any]) -> str | None:
    """The fault in a sentence, to be read before the model is served."""
    fault = fault_of(document)
    return _WARNINGS[fault].format(pairs=document["held_out"].get("pairs", 0)) if fault else None


def advice_on(document: Mapping[str, Any]) -> str:
    """What to try first, by what the run shows."""
    held_out = document["held_out"]
    learned = _mean([point["accuracy"] for point in document["curve"][-_LAST_POINTS:] if "accuracy" in point])
    verdict = verdict_of(held_out)
    if verdict == "worse" and learned >= _GUESSING:
        return "Make sure that `chosen` is the better answer everywhere in the data."
    if verdict and learned >= _LEARNED:
        return f"It gets {100 * learned:.0f} % of its training pairs right, and fails on new ones: train on more pairs."
    if 0 < held_out.get("pairs", 0) < _FEW_PAIRS:
        return "Train longer, and hold out more pairs to be sure: --eval-share or --eval-data."
    return "Train longer, on more data, or with a higher --learning-rate."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
