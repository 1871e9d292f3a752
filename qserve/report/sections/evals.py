"""Section: evaluations with standard errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qserve.charts.figures import Value, day_and_time, duration, text_of
from qserve.charts.spec import Interval, Intervals
from qserve.report.blocks import Block, Column, Figure, Section, Table
from qserve.report.facts import RunReport
from qserve.runs import StoredDocument

__all__ = ["evals", "scores_of", "title_of"]

_COLUMNS = (
    Column("task", "task"),
    Column("metric", "metric"),
    Column("value", "value", "number"),
    Column("stderr", "± standard error", "number"),
    Column("num_items", "items", "count"),
    Column("num_fewshot", "shots", "count"),
)


def evals(report: RunReport) -> Section | None:
    """A figure for each evaluation of this run."""
    blocks: list[Block] = []
    for one in report.evals:
        scores = list(scores_of(one.document.get("lm_eval", {})))
        if scores:
            blocks.append(_figure(one, scores))
    return Section("evals", "Evaluations", tuple(blocks)) if blocks else None


def scores_of(lm_eval: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every figure of every task of lm-eval's own result: `"exact_match,none": 0.5, "exact_match_stderr,none": …`."""
    for task, figures in lm_eval.get("results", {}).items():
        items = lm_eval.get("n-samples", {}).get(task, {}).get("effective")
        shots = lm_eval.get("n-shot", {}).get(task)
        for key, value in figures.items():
            metric, comma, kind = key.partition(",")
            if comma and not metric.endswith("_stderr") and isinstance(value, int | float):
                error = figures.get(f"{metric}_stderr,{kind}")
                stderr = float(error) if isinstance(error, int | float) else None
                yield {
                    "task": task,
                    "metric": metric,
                    "value": float(value),
                    "stderr": stderr,
                    "num_items": items,
                    "num_fewshot": shots,
                }


def _figure(one: StoredDocument, scores: Sequence[Mapping[str, Any]]) -> Block:
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            score["task"],
            score["metric"],
            score["value"],
            score.get("stderr"),
            score.get("num_items"),
            score.get("num_fewshot"),
        )
        for score in scores
    )
    table = Table(f"eval_{one.number}", title_of(one), _COLUMNS, rows, _how(one))
    shares = [score for score in scores if 0 <= score["value"] <= 1]
    if not shares:
        return table
    intervals = tuple(
        Interval(f"{score['task']} · {score['metric']}", score["value"], score.get("stderr") or 0.0, _text(score))
        for score in shares
    )
    return Figure(Intervals(intervals, 0.0, 1.0), table)


def title_of(one: StoredDocument) -> str:
    """What was evaluated and when: two evaluations of a run never read the same."""
    about = one.document.get("about", {})
    parts = (one.name or "evaluation", about.get("model"), about.get("scheme"), day_and_time(one.unix_s))
    return " · ".join(str(part) for part in parts if part)


def _text(score: Mapping[str, Any]) -> str:
    error = f" ± {100 * score['stderr']:.1f}" if score.get("stderr") else ""
    return text_of(score["value"], "share") + error


def _how(one: StoredDocument) -> str:
    about = one.document.get("about", {})
    version = about.get("versions", {}).get("lm-eval")
    parts = [
        f"lm-eval {version}" if version else "lm-eval",
        f"seed {about['seed']}" if "seed" in about else "",
        duration(about["seconds"]) if about.get("seconds") else "",
    ]
    return ", ".join(part for part in parts if part) + "."
