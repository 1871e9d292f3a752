"""The terminal output of `qserve eval` and `qserve eval diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qserve.evaluation.answers.generations import OutcomeCounts
    from qserve.evaluation.comparison.diff import TaskDiff
    from qserve.evaluation.preview import Preview
    from qserve.evaluation.results import EvalResult

__all__ = ["show_diff", "show_preview", "show_result", "show_warnings", "summary_of_diff"]

_MOST_FLIPS_SHOWN = 10
_MOST_WARNINGS = 5
_MOST_SHOWN = 240
_LARGE = 1000


def show_result(console: Console, result: EvalResult) -> None:
    """All metrics of all tasks, with standard errors."""
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
    for task, counts in result.outcomes().items():
        console.print(f"{task}: {_ended(counts)}")
    for task, unscorable in result.unscorable().items():
        console.print(f"{unscorable.sentence(task)}; they were left out", markup=False)
    console.print(f"{result.about['seconds']:.1f} s; ↓: lower is better")


def _ended(counts: OutcomeCounts) -> str:
    """One line: how many answers of a task were complete, truncated or empty."""
    tokens = "" if counts.mean_tokens is None else f", {counts.mean_tokens:,.0f} tokens each"
    thoughts = f", {counts.num_thoughts:,} with a thought" if counts.num_thoughts else ""
    lost = [f"{number:,} {name}" for name, number in
            (("cut off", counts.truncated), ("empty", counts.empty), ("null", counts.null)) if number]  # fmt: skip
    return f"{counts.num_answers:,} answers{thoughts}{tokens}; {', '.join(lost) or 'none cut off, empty or null'}"


def show_preview(console: Console, one: Preview) -> None:
    """The first item of a task: prompt, answer, what was extracted, target."""
    console.print(f"preflight: the first item of {one.task}")
    rows = (("prompt", one.prompt), ("thought", one.thought), ("answer", one.answer), ("scored", one.extracted),
            ("right", one.target))  # fmt: skip
    for name, text in rows:
        if text or name in ("answer", "scored"):
            console.print(f"  {name:8}{_short(text)}", markup=False)
    if one.outcome != "complete":
        console.print(f"  its answer is {one.outcome}: see --max-gen-toks and --thinking")


def _short(text: str) -> str:
    line = " ⏎ ".join(part for part in text.splitlines() if part.strip())
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN // 2]} … {line[-_MOST_SHOWN // 2 :]}"


def show_warnings(console: Console, warnings: Mapping[str, int]) -> None:
    """lm-eval's warnings, shortened; lm-eval.log beside the result has all of them."""
    for text, times in list(warnings.items())[:_MOST_WARNINGS]:
        console.print(f"lm-eval: {text}{f' ({times:,} times)' if times > 1 else ''}", markup=False)
    if len(warnings) > _MOST_WARNINGS:
        console.print(f"… and {len(warnings) - _MOST_WARNINGS} more in lm-eval.log")


def _figure(value: float) -> str:
    """Four decimals for shares, fewer for larger values such as a perplexity."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4g}"


def show_diff(console: Console, diff: TaskDiff) -> None:
    """One task: both scores, changed answers, whether chance explains them, and the first changed items."""
    console.print(f"[bold]{diff.task}[/bold]  {summary_of_diff(diff)}")
    for flip in diff.flips[:_MOST_FLIPS_SHOWN]:
        sign = "better" if flip.is_better else "worse "
        console.print(
            f"  {sign} item {flip.doc_id}: {flip.before!r} → {flip.after!r} (right: {flip.target!r})", markup=False
        )
    if len(diff.flips) > _MOST_FLIPS_SHOWN:
        console.print(f"  … and {len(diff.flips) - _MOST_FLIPS_SHOWN} more")


def summary_of_diff(diff: TaskDiff) -> str:
    """One line with the figures of a task."""
    drift = "" if diff.drift is None else f" · {diff.drift}"
    if not diff.has_answers:
        return f"mean {diff.metric} {diff.before:.4f} → {diff.after:.4f} on {diff.num_items:,} texts{drift}"
    better = sum(flip.is_better for flip in diff.flips)
    return (
        f"{diff.metric} {diff.before:.4f} → {diff.after:.4f} on {diff.num_items:,} items · "
        f"{len(diff.flips)} flipped ({better} better, {len(diff.flips) - better} worse) · p = {diff.p_value:.3f}{drift}"
    )
