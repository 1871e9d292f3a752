"""Terminal output of a training plan: one bar per kind of card, its terms, and the suggestions."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.text import Text

from qserve.cli.plan.drawing import Part, bar_panel, explained, headline, left_of, suggestion_list
from qserve.cli.terminal import Hanging, console_of
from qserve.planner.plan import Term
from qserve.planner.training import CardMemory, TrainingPlan
from qserve.units import format_bytes, format_parameters

__all__ = ["show_training"]

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
    console.print(Text(f"largest term: {plan.dominant}", style="bold"))
    if explain:
        for card, _ in kinds:
            console.print(_explained(card))
    for note in plan.notes:
        console.print(Hanging(note, style="dim"))
    if explain:
        console.print(Text("Common claims, checked for this run:", style="bold"))
        for trap in plan.traps:
            console.print(Hanging(trap))
    if plan.suggestions:
        console.print(suggestion_list("What would fit, cheapest first:", plan.suggestions), soft_wrap=True)


def _headline(plan: TrainingPlan) -> RenderableType:
    request = plan.request
    size, trained = format_parameters(plan.parameters), format_parameters(plan.trainable)
    facts = f"{request.method} {plan.model_id} · {size}, {trained} trained"
    facts += f" · {request.sequences} × {request.max_length} tokens a card"
    facts += " · FSDP2" if request.fsdp else f" · ZeRO-{request.zero_stage}" if request.zero_stage else ""
    return headline(plan.fits, facts, (), plan.why_not)


def _panel(card: CardMemory, count: int) -> RenderableType:
    title = f"{count} × {card.name} · {card.role} · {format_bytes(card.total_bytes)} · {left_of(card.free_bytes)}"
    phases = [f"{name} {format_bytes(num_bytes)}" for name, num_bytes in card.phases.items()]
    parts = [Part(term.name, term.num_bytes, _colour(term)) for term in card.terms]
    below = Text("by phase: " + " · ".join(phases), style="dim")
    return bar_panel(title, parts, card.total_bytes, parts_a_row=2, below=below)


def _colour(term: Term) -> str:
    return _COLOURS.get(term.name.split()[0], "bright_black")


def _explained(card: CardMemory) -> RenderableType:
    lines: list[RenderableType] = [Text(f"How {card.name} ({card.role}, {card.phase}) is counted:", style="bold")]
    lines += map(explained, card.terms)
    if card.other_terms:
        lines += [Text("Only in its other phases:", style="bold"), *map(explained, card.other_terms)]
    return Group(*lines)
