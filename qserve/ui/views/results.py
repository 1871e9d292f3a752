"""Runs and what was measured of them as HTML: earlier runs, evaluations, quantizations compared."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from typing import Any

from qserve.ui.strings import heading, translate
from qserve.ui.strings.sentences import shown
from qserve.ui.views.durations import duration
from qserve.ui.views.tables import table
from qserve.ui.views.training import state_text
from qserve.units import format_bytes

__all__ = ["comparisons_view", "evals_view", "runs_view"]

_MOST_RUNS = 20


def runs_view(runs: Sequence[Mapping[str, Any]], language: str) -> str:
    """The newest runs, one a row."""
    rows = [
        (
            run["id"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run["started_unix_s"])),
            duration(float(run.get("duration_s") or 0)),
            state_text(str(run.get("state") or ""), language),
            ", ".join(
                " ".join(str(part) for part in (*(worker.get("models") or ())[:1], worker.get("quant")) if part)
                for worker in run.get("workers") or ()
            ),
            f"{run.get('num_requests') or 0:,}",
            f"{run.get('num_errors') or 0:,}",
        )
        for run in list(runs)[:_MOST_RUNS]
    ]
    keys = ("run", "when", "duration", "status", "models", "count", "errors")
    return table([heading(language, f"memory.{key}") for key in keys], rows, numbers=(2, 5, 6))


def evals_view(evals: Sequence[Mapping[str, Any]], language: str) -> str:
    """Results of evaluations in lm-eval's shape: one value a row."""
    rows = [
        (one.get("name") or "", task, metric, f"{value:.4f}")
        for one in evals
        for task, values in _results(one).items()
        for metric, value in values.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and "stderr" not in metric
    ]
    keys = ("evals", "task", "metric", "value")
    return table([translate(language, f"memory.{key}") for key in keys], rows, numbers=(3,)) if rows else ""


def comparisons_view(comparisons: Sequence[Mapping[str, Any]], language: str) -> str:
    """Quantizations side by side, as `qserve compare` kept them: accuracy, weights, speed, and its advice."""
    return "".join(_comparison(one.get("document") or {}, language) for one in comparisons)


def _comparison(document: Mapping[str, Any], language: str) -> str:
    rows = [
        (
            one["quant"],
            f"{one['accuracy']:.4f} ± {one['stderr']:.4f}",
            format_bytes(int(one["weights_bytes"])),
            f"{(one.get('load') or {}).get('tokens_per_s') or 0:.1f}",
        )
        for one in document.get("candidates") or ()
    ]
    if not rows:
        return ""
    keys = ("memory.comparisons", "score.accuracy", "term.weights", "memory.tokens_per_s")
    advice = html.escape(shown(language, str(document.get("advice") or "")))
    return f'{table([heading(language, key) for key in keys], rows, numbers=(1, 2, 3))}<p class="qs-small">{advice}</p>'


def _results(one: Mapping[str, Any]) -> Mapping[str, Any]:
    document = one.get("document") or {}
    results = document.get("results") or (document.get("lm_eval") or {}).get("results") or {}
    return results if isinstance(results, Mapping) else {}
