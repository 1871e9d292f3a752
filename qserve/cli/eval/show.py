"""The terminal output of `qserve eval` and `qserve eval diff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from qserve.terminal.console import console_of
from qserve.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qserve.evaluation.answers.generations import OutcomeCounts
    from qserve.evaluation.comparison.diff import TaskDiff
    from qserve.evaluation.preview import Preview
    from qserve.evaluation.results import EvalResult

__all__ = ["diff_table", "show_diff", "show_preview", "show_result", "show_warnings"]

_MOST_FLIPS_SHOWN = 10
_MOST_WARNINGS = 5
_MOST_SHOWN = 240
_LARGE = 1000


def show_result(console: Console, result: EvalResult) -> None:
    """All metrics of all tasks, with standard errors."""
    about = result.about
    console.print(" · ".join(filter(None, (about.get("model"), about.get("scheme")))), style="bold", markup=False)
    table = _table("task", "metric")
    for name in ("value", "± stderr", "items", "shots"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in result.scores():
        stderr = "" if score.stderr is None else f"{score.stderr:.4f}"
        better = "" if score.higher_is_better else " ↓"
        items, shots = f"{score.num_items:,}", str(score.num_fewshot)
        table.add_row(score.task, score.metric + better, _figure(score.value), stderr, items, shots)
    console.print(table)
    if not all(score.higher_is_better for score in result.scores()):
        console.print("↓ lower is better")
    for task, counts in result.outcomes().items():
        console.print(f"{task}: {_ended(counts)}", markup=False)
    for task, unscorable in result.unscorable().items():
        console.print(f"{unscorable.sentence(task)}; they were left out", markup=False)
    console.print(f"Took    {format_seconds(about['seconds'])}")


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _ended(counts: OutcomeCounts) -> str:
    """One line: how many answers of a task were complete, truncated or empty."""
    tokens = "" if counts.mean_tokens is None else f", {counts.mean_tokens:,.0f} tokens each"
    thoughts = f", {counts.num_thoughts:,} with a thought" if counts.num_thoughts else ""
    lost = [
        f"{number:,} {name}"
        for name, number in (("cut off", counts.truncated), ("empty", counts.empty), ("null", counts.null))
        if number
    ]
    return f"{counts.num_answers:,} answers{thoughts}{tokens}; {', '.join(lost) or 'none cut off or empty'}"


def show_preview(one: Preview) -> None:
    """The first item of a task, on standard error: prompt, answer, what was extracted, target."""
    click.echo(f"First item of {one.task}:", err=True)
    rows = (
        ("prompt", one.prompt),
        ("thought", one.thought),
        ("answer", one.answer),
        ("scored", one.extracted),
        ("right", one.target),
    )
    most = min(_MOST_SHOWN, console_of(stderr=True).width - 10)
    for name, text in rows:
        if text or name in ("answer", "scored"):
            click.echo(f"  {name:8}{_short(text, most)}", err=True)
    if one.outcome != "complete":
        click.echo(f"  Its answer is {one.outcome}: see --max-gen-toks and --thinking", err=True)


def _short(text: str, most: int) -> str:
    line = " ⏎ ".join(part for part in text.splitlines() if part.strip())
    return line if len(line) <= most else f"{line[: most // 2 - 2]} … {line[-(most // 2 - 2) :]}"


def show_warnings(console: Console, warnings: Mapping[str, int]) -> None:
    """lm-eval's warnings, shortened; lm-eval.log beside the result has all of them."""
    for text, times in list(warnings.items())[:_MOST_WARNINGS]:
        console.print(f"lm-eval: {text}{f' ({times:,} times)' if times > 1 else ''}", markup=False)
    if len(warnings) > _MOST_WARNINGS:
        console.print(f"{len(warnings) - _MOST_WARNINGS:,} more warnings in lm-eval.log")


def _figure(value: float) -> str:
    """Four decimals for shares, fewer for larger values such as a perplexity."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4g}"


def show_diff(console: Console, diffs: Sequence[TaskDiff]) -> None:
    """Every task in a row, then the first items of each that were right once only."""
    console.print(diff_table(diffs))
    console.print(LEGEND, style="dim")
    for diff in (one for one in diffs if one.flips):
        console.print(f"\n{diff.task}", style="bold", markup=False)
        for flip in diff.flips[:_MOST_FLIPS_SHOWN]:
            sign = "better" if flip.is_better else "worse "
            change = f"{flip.before!r} → {flip.after!r} (right: {flip.target!r})"
            console.print(f"  {sign}  item {flip.doc_id}: {change}", markup=False)
        if len(diff.flips) > _MOST_FLIPS_SHOWN:
            console.print(f"  {len(diff.flips) - _MOST_FLIPS_SHOWN:,} more: see --json", markup=False)


LEGEND = (
    "better, worse: items that were wrong and are right now, and the reverse. p below 0.05: hardly chance. drift: mean "
    "change of the scores behind the answers."
)


def _p(value: float) -> str:
    """A probability: '0.250', '<0.001'."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def diff_table(diffs: Sequence[TaskDiff]) -> Table:
    """One row a task: what was right before and after, answers that changed, and whether it can be chance."""
    table = _table("task")
    for name in ("right", "changed", "better", "worse", "p", "drift"):
        table.add_column(name, justify="right", no_wrap=True)
    for diff in diffs:
        drift = "" if diff.drift is None else f"{diff.drift.mean:.2g}"
        if diff.has_answers:
            num_better = sum(flip.is_better for flip in diff.flips)
            right = f"{100 * diff.before:.1f} → {100 * diff.after:.1f} %"
            counts = (
                f"{diff.num_changed:,} of {diff.num_items:,}",
                f"{num_better:,}",
                f"{len(diff.flips) - num_better:,}",
            )
            table.add_row(diff.task, right, *counts, _p(diff.p_value), drift)
        else:
            table.add_row(f"{diff.task} ({diff.metric})", f"{diff.before:.4g} → {diff.after:.4g}", *[""] * 4, drift)
    return table
