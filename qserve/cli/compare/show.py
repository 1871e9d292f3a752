"""The output of `qserve compare`: a table, changed answers per quantization, and the points of the chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from qserve.cli.eval.show import summary_of_diff
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.evaluation.comparison.compare import Candidate

__all__ = ["picture_of", "show_candidates"]


def show_candidates(console: Console, candidates: Sequence[Candidate]) -> None:
    """A table with one column per quantization, items without a score, and answers that changed against the first."""
    from qserve.evaluation.comparison.compare import unscorable_in

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("", no_wrap=True)
    for one in candidates:
        table.add_column(one.quant, justify="right", no_wrap=True)
    for name, figure in _ROWS.items():
        table.add_row(name, *(figure(one) for one in candidates))
    for task, row in _accuracies(candidates).items():
        table.add_row(task, *row)
    if any(one.answer_tokens is not None for one in candidates):
        table.add_row("tokens an answer", *(_count(one.answer_tokens) for one in candidates))
        table.add_row("tokens a right one", *(_count(one.tokens_per_right) for one in candidates))
        table.add_row("time a right one", *(_figure(one.seconds_per_right, "s") for one in candidates))
        if any(one.usd_per_right is not None for one in candidates):
            table.add_row("USD for 1,000", *(_figure(_of_a_thousand(one.usd_per_right)) for one in candidates))
        table.add_row("cut off, empty", *(_lost(one) for one in candidates))
    console.print(table)
    for sentence in unscorable_in(candidates):
        console.print(f"{sentence}; they were left out", markup=False)
    for one in candidates[1:]:
        for diff in one.diffs:
            console.print(f"{one.quant} against {candidates[0].quant}, {diff.task}: {summary_of_diff(diff)}")


def picture_of(title: str, candidates: Sequence[Candidate]) -> str:
    """The Pareto chart as SVG."""
    from qserve.evaluation.comparison.picture import Point, pareto_svg

    points = [Point(one.quant, one.held_bytes, one.accuracy, one.stderr, one.load.tokens_per_s) for one in candidates]
    return pareto_svg(points, title)


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _figure(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{value:.3g} {unit}".rstrip()


def _of_a_thousand(value: float | None) -> float | None:
    return None if value is None else 1000 * value


def _lost(one: Candidate) -> str:
    outcomes = one.result.outcomes().values()
    return f"{sum(counts.truncated + counts.empty + counts.null for counts in outcomes):,}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g} ms"


_ROWS: dict[str, Callable[[Candidate], str]] = {
    "weights": lambda one: format_bytes(one.held_bytes),
    "planned": lambda one: format_bytes(one.planned_bytes),
    "resident": lambda one: format_bytes(one.memory.get("resident_bytes") or 0),
    "start": lambda one: f"{one.start_s:.1f} s",
    "TTFT": lambda one: _ms(one.load.ttft_ms),
    "TPOT": lambda one: _ms(one.load.tpot_ms),
    "E2E": lambda one: _ms(one.load.e2e_ms),
    "throughput": lambda one: f"{one.load.tokens_per_s:,.0f} tokens/s",
}


def _accuracies(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    from qserve.evaluation.comparison.compare import main_score

    scores = [main_score(one.result) for one in candidates]
    return {task: [f"{one[task]:.4f}" for one in scores] for task in scores[0]}
