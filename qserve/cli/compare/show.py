"""The output of `qserve compare`: figures and changed answers per quantization, a recommendation, the chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from qserve.cli.eval.show import LEGEND, diff_table
from qserve.units import format_bytes, format_ms, format_rate, format_seconds

if TYPE_CHECKING:
    from qserve.evaluation.comparison.compare import Candidate

__all__ = ["picture_of", "show_candidates"]

_Figure = Callable[["Candidate"], str]
"""A figure for people; empty where there is none."""


def show_candidates(console: Console, title: str, candidates: Sequence[Candidate]) -> None:
    """A column for each quantization, items without a score, answers that changed, and which one to use."""
    from qserve.evaluation.comparison.compare import advice, recommended, unscorable_in, verdict

    first, best = candidates[0], recommended(candidates)
    console.print(title, style="bold", markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("", overflow="fold")
    for one in candidates:
        table.add_column(one.quant, justify="right", no_wrap=True)
    for name, figures in _rows(candidates):
        table.add_row(name, *figures)
    console.print(table)
    for sentence in unscorable_in(candidates):
        console.print(f"{sentence}; they were left out", markup=False)
    for one in candidates[1:]:
        console.print(f"\n{one.quant} against {first.quant}", style="bold", markup=False)
        console.print(diff_table(one.diffs))
    console.print(LEGEND, style="dim")
    console.print()
    for one in candidates[1:]:
        if one is not best:
            console.print(verdict(one, first), markup=False)
    console.print(advice(candidates), style="bold", markup=False)


def picture_of(title: str, candidates: Sequence[Candidate]) -> str:
    """The Pareto chart as SVG."""
    from qserve.charts.svg import svg_file
    from qserve.report.sections.comparison import tradeoffs

    points = [(one.quant, one.held_bytes, one.accuracy, one.stderr, one.load.tokens_per_s) for one in candidates]
    return svg_file(tradeoffs(points), title)


def _rows(candidates: Sequence[Candidate]) -> Iterator[tuple[str, list[str]]]:
    """Those of which at least one quantization has a figure."""
    from qserve.evaluation.comparison.compare import main_score

    for name, figure in _MEASURED.items():
        row = [figure(one) for one in candidates]
        if any(row):
            yield name, [cell or "–" for cell in row]
    scores = [main_score(one.result) for one in candidates]
    if scores[0]:
        yield "accuracy", [""] * len(candidates)
    for task in scores[0]:
        yield f"  {task}", [f"{100 * one[task]:.1f} %" for one in scores]
    if any(one.answer_tokens is not None for one in candidates):
        yield "generated answers", [""] * len(candidates)
        for name, figure in _GENERATED.items():
            row = [figure(one) for one in candidates]
            if any(row):
                yield f"  {name}", [cell or "–" for cell in row]


def _optional(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


def _lost(one: Candidate) -> str:
    outcomes = one.result.outcomes().values()
    return f"{sum(counts.truncated + counts.empty + counts.null for counts in outcomes):,}"


_MEASURED: dict[str, _Figure] = {
    "weights": lambda one: format_bytes(one.held_bytes),
    "  planned": lambda one: format_bytes(one.planned_bytes),
    "resident memory": lambda one: _optional(one.memory.get("resident_bytes"), format_bytes),
    "start": lambda one: format_seconds(one.start_s),
    "time to first token": lambda one: _optional(one.load.ttft_ms, format_ms),
    "time per token": lambda one: _optional(one.load.tpot_ms, format_ms),
    "time per request": lambda one: format_ms(one.load.e2e_ms),
    "tokens/s": lambda one: format_rate(one.load.tokens_per_s),
}
_GENERATED: dict[str, _Figure] = {
    "tokens each": lambda one: _optional(one.answer_tokens, "{:,.1f}".format),
    "tokens per right one": lambda one: _optional(one.tokens_per_right, "{:,.1f}".format),
    "time per right one": lambda one: _optional(one.seconds_per_right, format_seconds),
    "USD per 1,000 right": lambda one: _optional(one.usd_per_right, lambda usd: f"{1000 * usd:.3g}"),
    "cut off or empty": _lost,
}
