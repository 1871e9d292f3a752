"""What a comparison looks like: a table, the flips of each quantization, and the points of the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from qserve.cli.show_eval import said_of
from qserve.units import format_bytes

if TYPE_CHECKING:
    from qserve.evaluation.compare import Candidate

__all__ = ["picture_of", "show_candidates"]


def show_candidates(console: Console, candidates: Sequence[Candidate]) -> None:
    """A column a quantization; below it, task by task, what changed against the first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("", no_wrap=True)
    for one in candidates:
        table.add_column(one.quant, justify="right", no_wrap=True)
    for name, figure in _ROWS.items():
        table.add_row(name, *(figure(one) for one in candidates))
    for task, row in _accuracies(candidates).items():
        table.add_row(task, *row)
    console.print(table)
    for one in candidates[1:]:
        for diff in one.diffs:
            console.print(f"{one.quant} against {candidates[0].quant}, {diff.task}: {said_of(diff)}")


def picture_of(title: str, candidates: Sequence[Candidate]) -> str:
    """The Pareto picture as SVG."""
    from qserve.evaluation.picture import Point, pareto_svg

    points = [Point(one.quant, one.held_bytes, one.accuracy, one.stderr, one.load.tokens_per_s) for one in candidates]
    return pareto_svg(points, title)


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
    from qserve.evaluation.compare import main_score

    scores = [main_score(one.result) for one in candidates]
    return {task: [f"{one[task]:.4f}" for one in scores] for task in scores[0]}
