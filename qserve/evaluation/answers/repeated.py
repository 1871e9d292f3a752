"""Metrics over several answers per item: avg@k, pass@k, maj@k.

- avg@k: the mean over items of the mean over their k answers.
- pass@k: the share of items with a right one among k.
- maj@k: the figure of the answer that most of the k agree on; the first of them where several are as frequent.

Standard errors are over items (answers to one item are not independent): standard deviation / sqrt(items).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Repeated", "combined", "repeated_figures"]

_Samples = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Repeated:
    """A figure with its standard error; None where there is one item."""

    name: str
    value: float
    stderr: float | None


def repeated_figures(metric: str, runs: Sequence[_Samples]) -> list[Repeated]:
    """avg@k, pass@k and maj@k of one metric of one filter; `runs` are the samples of each of the k runs."""
    by_item = [{int(sample["doc_id"]): sample for sample in run} for run in runs]
    items = sorted(set.intersection(*(set(run) for run in by_item)))
    answers = [[run[item] for run in by_item] for item in items]
    k = len(runs)
    by_question = [[float(sample[metric]) for sample in several] for several in answers]
    return [
        _figure(f"avg@{k}", [statistics.fmean(values) for values in by_question]),
        _figure(f"pass@{k}", [max(values) for values in by_question]),
        _figure(f"maj@{k}", [float(_majority(several)[metric]) for several in answers]),
    ]


def combined(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """lm-eval's results of k runs as one: the first's, with avg@k in place of each figure, pass@k and maj@k added.

    Tasks that only the first run asked are left as they are: log-likelihoods are the same each time.
    """
    whole = dict(runs[0])
    whole["results"] = {task: dict(figures) for task, figures in runs[0]["results"].items()}
    repeated = {task: samples for task, samples in runs[0]["samples"].items() if task in runs[1]["samples"]}
    for task, samples in repeated.items():
        for metric, kind in sorted({(name, sample["filter"]) for sample in samples for name in sample["metrics"]}):
            of_kind = [[one for one in run["samples"][task] if one["filter"] == kind] for run in runs]
            if not all(_is_number(sample.get(metric)) for run in of_kind for sample in run):
                continue
            figures = whole["results"][task]
            for figure in repeated_figures(metric, of_kind):
                _write(figures, f"{metric}_{figure.name}", kind, figure)
                if figure.name.startswith("avg"):
                    _write(figures, metric, kind, figure)
    others = {
        task: [_with_others(sample, index, task, runs) for index, sample in enumerate(samples)]
        for task, samples in repeated.items()
    }
    whole["samples"] = {**runs[0]["samples"], **others}
    return whole


def _write(figures: dict[str, Any], name: str, kind: str, figure: Repeated) -> None:
    figures[f"{name},{kind}"] = figure.value
    figures[f"{name}_stderr,{kind}"] = "N/A" if figure.stderr is None else figure.stderr


def _with_others(sample: Mapping[str, Any], index: int, task: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first run's sample with the answers of the others."""
    others = [run["samples"][task][index] for run in runs[1:]]
    kept = ("resps", "filtered_resps", "generations", *sample["metrics"])
    return {**sample, "repeats": [{name: other[name] for name in kept if name in other} for other in others]}


def _majority(several: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    texts = [str(sample["filtered_resps"]).strip().casefold() for sample in several]
    winner, _ = Counter(texts).most_common(1)[0]  # ties: the first seen
    return several[texts.index(winner)]


def _figure(name: str, values: Sequence[float]) -> Repeated:
    stderr = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Repeated(name, statistics.fmean(values), stderr)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
