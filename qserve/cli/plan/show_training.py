"""Terminal output of a training plan: one bar per kind of card, its terms, and the suggestions."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qserve.planner.plan import Suggestion, Term
from qserve.planner.training import CardMemory, TrainingPlan, TrainingSuggestion
from qserve.planner.training.duration import Duration
from qserve.terminal.bars import Part, bar_panel, explained, headline, left_of, next_step_on, suggestion_list
from qserve.terminal.console import Hanging, console_of
from qserve.units import format_bytes, format_parameters, format_seconds

__all__ = ["show_training"]

_ROWS = {"reward": "pairs", "dpo": "pairs", "grpo": "rollouts", "ppo": "rollouts"}
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


def show_training(
    plan: TrainingPlan,
    explain: bool = False,
    console: Console | None = None,
    *,
    command: str = "",
    machine: str = "",
    with_time: bool = False,
) -> None:
    """Prints the plan; with `explain` every term's formula, band and source; `with_time`: how long it takes.

    `command`: what runs a plan that fits, on the cards that `machine` names; empty: here.
    """
    console = console or console_of()
    console.print(_headline(plan))
    kinds = [(card, len(list(cards))) for card, cards in groupby(plan.cards)]
    for card, count in kinds:
        console.print(_panel(card, count))
    console.print(_facts(plan, with_time=with_time))
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
        offered = [replace(one, cost=_cost(one)) for one in plan.suggestions]
        console.print(suggestion_list(_heading(plan), offered), soft_wrap=True)
    elif plan.fits and command:
        console.print(next_step_on(machine, "Train it", command), soft_wrap=True)


def _headline(plan: TrainingPlan) -> RenderableType:
    request = plan.request
    size, trained = format_parameters(plan.parameters), format_parameters(plan.trainable)
    facts = f"{request.method} {plan.model_id} · {size}, {trained} trained"
    facts += f" · {request.sequences} × {request.max_length} tokens a card"
    facts += " · FSDP2" if request.fsdp else f" · ZeRO-{request.zero_stage}" if request.zero_stage else ""
    return headline(plan.fits, facts, (), plan.why_not)


def _facts(plan: TrainingPlan, with_time: bool) -> RenderableType:
    """What the bars do not show."""
    request, grid = plan.request, Table.grid(padding=(0, 2))
    grid.add_row(Text("largest", style="bold"), plan.dominant)
    if plan.host_bytes:
        where = "on NVMe" if "nvme" in (request.offload_optimizer, request.offload_param) else "of RAM"
        grid.add_row(Text("offloaded", style="bold"), f"{format_bytes(plan.host_bytes)} {where}, all cards together")
    rows = f"{request.micro_batch} × {request.gradient_accumulation_steps}"
    grid.add_row(Text("batch", style="bold"), f"{rows} {_ROWS.get(request.method, 'rows')} a card and optimizer step")
    if plan.fits and plan.duration is not None and with_time:
        grid.add_row(Text("time", style="bold"), f"{_time(plan.duration)} for {_rows(plan)} (--rows)")
    return grid


def _rows(plan: TrainingPlan) -> str:
    """What an estimate of time is for."""
    request = plan.request
    num_rows = plan.duration.num_rows if plan.duration else 0
    length = min(request.mean_length or request.max_length, request.max_length)
    return f"{num_rows:,} {_ROWS.get(request.method, 'rows')} of {length:,} tokens"


def _heading(plan: TrainingPlan) -> str:
    return f"What fits instead (time of {_rows(plan)}; --rows):" if plan.duration else "What fits instead:"


def _time(duration: Duration) -> str:
    """The estimate and its band."""
    low, high = format_seconds(duration.low_s), format_seconds(duration.high_s)
    low = low.removesuffix(f" {high.partition(' ')[2]}")  # a unit that both have is written once
    return f"about {format_seconds(duration.expected_s)} ({low} to {high})"


def _cost(suggestion: Suggestion) -> str:
    """What is lost, and what the run then needs."""
    if not isinstance(suggestion, TrainingSuggestion):
        return suggestion.cost
    needs = f"{suggestion.cost}; {format_bytes(suggestion.used_bytes)} a card"
    needs += f" and {format_bytes(suggestion.host_bytes)} of RAM" if suggestion.host_bytes else ""
    return needs + (f"; {_time(suggestion.duration)}" if suggestion.duration else "")


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
