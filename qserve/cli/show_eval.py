"""What an evaluation, and a difference of two, look like on a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from qserve.evaluation.diff import TaskDiff
    from qserve.evaluation.results import EvalResult

__all__ = ["said_of", "show_diff", "show_result"]

_MOST_FLIPS_SHOWN = 10
_LARGE = 1000


def show_result(console: Console, result: EvalResult) -> None:
    """Every figure of every task with its standard error."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in ("task", "metric"):
        table.add_column(name, no_wrap=True, overflow="ignore")
    for name in ("value", "± stderr", "items", "shots"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in result.scores():
        stderr = "" if score.stderr is None else f"{score.stderr:.4f}"
        better = "" if score.higher_is_better else " ↓"
        items, shots = f"{score.num_items:,}", str(score.num_fewshot)
        table.add_row(score.task, score.metric + better, _figure(score.value), stderr, items, shots)
    console.print(table)
    console.print(f"{result.about['seconds']:.1f} s; ↓: lower is better")


def _figure(value: float) -> str:
    """Shares with four decimals; a perplexity may be of any size."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4g}"


def show_diff(console: Console, diff: TaskDiff) -> None:
    """One task: both shares, the flips, whether chance explains them, and the first of them by name."""
    console.print(f"[bold]{diff.task}[/bold]  {said_of(diff)}")
    for flip in diff.flips[:_MOST_FLIPS_SHOWN]:
        sign = "better" if flip.is_better else "worse "
        console.print(
            f"  {sign} item {flip.doc_id}: {flip.before!r} → {flip.after!r} (right: {flip.target!r})", markup=False
        )
    if len(diff.flips) > _MOST_FLIPS_SHOWN:
        console.print(f"  … and {len(diff.flips) - _MOST_FLIPS_SHOWN} more")


def said_of(diff: TaskDiff) -> str:
    """The figures of one task in a line."""
    drift = "" if diff.drift is None else f" · {diff.drift}"
    if not diff.has_answers:
        return f"mean {diff.metric} {diff.before:.4f} → {diff.after:.4f} on {diff.num_items:,} texts{drift}"
    better = sum(flip.is_better for flip in diff.flips)
    return (
        f"{diff.metric} {diff.before:.4f} → {diff.after:.4f} on {diff.num_items:,} items · "
        f"{len(diff.flips)} flipped ({better} better, {len(diff.flips) - better} worse) · p = {diff.p_value:.3f}{drift}"
    )
