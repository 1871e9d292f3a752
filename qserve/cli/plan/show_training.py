"""A training plan as a person likes to read it: one bar per kind of card, its terms, and what to change first."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from qserve.cli.terminal import console_of
from qserve.planner.plan import Term
from qserve.planner.training import CardMemory, TrainingPlan
from qserve.units import GIB, format_bytes

__all__ = ["show_training"]

_BAR_WIDTH = 60
# By the first word of a term's name.
_COLOURS = {
    "weights": "blue",
    "gathered": "bright_blue",
    "gradients": "magenta",
    "optimizer": "red",
    "buckets": "bright_magenta",
    "activations": "yellow",
    "recomputed": "bright_yellow",
    "logits": "green",
    "fragmentation": "white",
    "vllm": "cyan",
}


def show_training(plan: TrainingPlan, explain: bool = False, console: Console | None = None) -> None:
    """Prints the plan; with `explain` every term's formula, band and source."""
    console = console or console_of()
    console.print(_headline(plan))
    kinds = [(card, len(list(cards))) for card, cards in groupby(plan.cards)]
    for card, count in kinds:
        console.print(_panel(card, count))
    if plan.host_bytes:
        console.print(Text(f"in RAM or on NVMe, all ranks together: {format_bytes(plan.host_bytes)}"))
    console.print(Text(f"what dominates: {plan.dominant}", style="bold"))
    if explain:
        for card, _ in kinds:
            console.print(_explained(card))
    for note in plan.notes:
        console.print(Text(f"· {note}", style="dim"))
    if explain:
        console.print(Text("What is commonly said, and what holds here:", style="bold"))
        for trap in plan.traps:
            console.print(Text(f"· {trap}"))
    if plan.suggestions:
        console.print(_ways_out(plan), soft_wrap=True)  # a wrapped command could not be copied


def _headline(plan: TrainingPlan) -> RenderableType:
    verdict, style = (" fits ", "bold white on green") if plan.fits else (" does not fit ", "bold white on red")
    request = plan.request
    share = f"{plan.trainable / 1e9:.2f}B" if plan.trainable >= 1e8 else f"{plan.trainable / 1e6:.2f}M"
    facts = f" {request.method} {plan.model_id} · {plan.parameters / 1e9:.2f}B, {share} trained"
    facts += f" · {request.sequences} × {request.max_length} tokens a card · ZeRO-{request.zero_stage}"
    lines: list[RenderableType] = [Text.assemble((verdict, style), (facts, "bold"))]
    if plan.why_not:
        lines.append(Text(f"  {plan.why_not}", style="red"))
    return Group(*lines)


def _panel(card: CardMemory, count: int) -> RenderableType:
    free = card.free_bytes
    left = f"{format_bytes(free)} left" if free >= 0 else f"{format_bytes(-free)} too much"
    title = f"{count} × {card.name} · {card.role} · {format_bytes(card.total_bytes)} · {left}"
    phases = [f"{name} {format_bytes(num_bytes)}" for name, num_bytes in card.phases.items()]
    content = Group(_bar(card), _legend(card), Text("by phase: " + " · ".join(phases), style="dim"))
    return Panel(content, title=title, title_align="left", width=_BAR_WIDTH + 18, border_style="dim")


def _colour(term: Term) -> str:
    return _COLOURS.get(term.name.split()[0], "bright_black")


def _bar(card: CardMemory) -> Text:
    whole = max(card.total_bytes, card.used_bytes, 1)
    bar = Text()
    for term in card.terms:
        bar.append("█" * round(term.num_bytes * _BAR_WIDTH / whole), style=_colour(term))
    return bar.append("░" * max(0, _BAR_WIDTH - len(bar)), style="dim")


def _legend(card: CardMemory) -> Table:
    grid = Table.grid(padding=(0, 3))
    cells = [
        Text.assemble(("■ ", _colour(term)), f"{term.name} {format_bytes(term.num_bytes)}")
        for term in card.terms
        if term.num_bytes
    ]
    for start in range(0, len(cells), 2):
        grid.add_row(*cells[start : start + 2])
    return grid


def _explained(card: CardMemory) -> RenderableType:
    lines: list[RenderableType] = [Text(f"How {card.name} ({card.role}, {card.phase}) is counted:", style="bold")]
    lines += [_explained_term(term) for term in card.terms]
    if card.other_terms:
        lines.append(Text("Only in its other phases:", style="bold"))
        lines += [_explained_term(term) for term in card.other_terms]
    return Group(*lines)


def _explained_term(term: Term) -> RenderableType:
    band = f"  ({term.low_bytes / GIB:.2f} to {term.high_bytes / GIB:.2f} GiB)"
    return Group(
        Text.assemble((f"{term.name}: {format_bytes(term.num_bytes)}", "bold"), (band, "dim")),
        Text(f"  = {term.formula}"),
        Text(f"  source: {term.source}", style="dim"),
    )


def _ways_out(plan: TrainingPlan) -> RenderableType:
    lines: list[RenderableType] = [Text("What would fit, cheapest first:", style="bold")]
    for number, suggestion in enumerate(plan.suggestions, 1):
        lines.append(Text(f"{number}. {suggestion.change}", style="green"))
        lines.append(Text(f"   {suggestion.cost}"))
        lines.append(Text(f"   {suggestion.command}", style="cyan"))
    return Group(*lines)
