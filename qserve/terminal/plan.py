"""Terminal output of a plan: one bar per device with its terms in colours, and the free memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qserve.planner.layout_rows import layout_rows
from qserve.planner.plan import DevicePlan, Plan
from qserve.planner.speed.estimate import replicas_of
from qserve.planner.term import COLUMNS, Column
from qserve.service.replicas import num_engines
from qserve.terminal.bars import Part, bar_panel, explained, headline, left_of, next_step_on, suggestion_list
from qserve.terminal.console import Hanging, console_of
from qserve.units import format_bytes, format_count, format_parameters

__all__ = ["show_headline", "show_next_step", "show_plan", "show_ways"]

_NOTHING_FITS = (
    "Nothing that was tried fits: smaller models of the family, fewer bits, a shorter length, more or larger cards. "
    "`qserve models` lists what is known."
)
_COLOURS: Mapping[Column, str] = {
    "weights": "blue",
    "kv_cache": "green",
    "activations": "yellow",
    "cuda_graphs": "magenta",
    "runtime": "cyan",
}


def show_plan(plan: Plan, explain: bool = False, console: Console | None = None, with_ways: bool = True) -> None:
    """Prints the plan; with `explain` every term's formula, numbers and source.

    `with_ways`: of a plan that does not fit, what would (`show_ways`).
    """
    console = console or console_of()
    show_headline(plan, console)
    for device, cards in groupby(plan.devices):
        console.print(_device(device, len(list(cards))))
    for row in layout_rows(plan):
        console.print(Text(row), soft_wrap=True)
    if plan.fits or plan.may_fit:
        console.print(_limits(plan))
    if plan.host:
        console.print(Text(_beside(plan)), soft_wrap=True)
    if explain:
        for device, cards in groupby(plan.devices):
            console.print(_terms(device, len(list(cards))))
        for process in plan.host:
            console.print(Hanging(f"{process.name}, in RAM: {format_bytes(process.num_bytes)}; {process.source}", "  "))
        console.print(Text("Good to know:", style="bold"))
        for line in plan.explanations:
            console.print(Hanging(line))
    for note in plan.notes:
        console.print(Hanging(note, style="dim"))
    if with_ways:
        show_ways(plan, console)


def show_headline(plan: Plan, console: Console | None = None) -> None:
    """Prints whether it fits, what is loaded, and why."""
    console = console or console_of()
    console.print(_headline(plan))
    if plan.guess:
        console.print(Hanging(plan.guess, "  ", "bold yellow"))


def show_ways(plan: Plan, console: Console) -> None:
    """Prints what would fit, where the plan does not; of a plan that may fit, surely."""
    if plan.fits:
        return
    if plan.suggestions:
        heading = "What would fit in any case:" if plan.may_fit else "What would fit:"
        console.print(suggestion_list(heading, plan.suggestions), soft_wrap=True)
    elif not plan.may_fit:
        console.print(Hanging(_NOTHING_FITS, ""))


def show_next_step(plan: Plan, console: Console | None = None) -> None:
    """Prints what is fast enough, where the plan is not, and the command that serves it, where there is one.

    What keeps the targets is printed with the speed (`show_speed`), and not again.
    """
    of_the_load = (plan.speed or {}).get("suggestions") or ()
    ways = [way for way in plan.suggestions if vars(way) not in of_the_load]
    if plan.fits and not plan.is_usable and ways:
        (console or console_of()).print(suggestion_list("What would be faster:", ways), soft_wrap=True)
    if plan.next_command:
        (console or console_of()).print(next_step_on(plan.machine, "Serve it", plan.next_command), soft_wrap=True)


def _headline(plan: Plan) -> RenderableType:
    size = format_parameters(plan.model.parameters)
    facts = f"{plan.model.id} · {size} · {plan.quant.scheme} · {plan.engine} {plan.engine_version}".rstrip()
    is_changed = plan.quant.checkpoint != plan.model.id or plan.quant.in_flight
    reason = plan.quant.reason.removeprefix(f"{plan.quant.checkpoint} was ")
    is_itself = plan.model.revision and plan.quant.checkpoint == plan.model.id
    notes = [f"revision {plan.model.revision}"] if is_itself else []
    notes += [f"loads {plan.quant.checkpoint}: {reason}"] if is_changed else []
    return headline(plan.fits, facts, notes, plan.why_not, plan.is_usable, plan.may_fit)


def _device(device: DevicePlan, count: int) -> RenderableType:
    """One panel for identical cards (the ranks of a stage)."""
    name = f"{count} × {device.name}, each" if count > 1 else device.name
    title = f"{name} · {format_bytes(device.total_bytes)} · {left_of(device.free_bytes)}"
    parts = [Part(name, getattr(device, f"{column}_bytes"), _COLOURS[column]) for column, name in COLUMNS.items()]
    parts.append(Part("others", device.used_by_others_bytes, "bright_black"))
    return bar_panel(title, parts, device.total_bytes, parts_a_row=3)


def _limits(plan: Plan) -> RenderableType:
    workload, placement = plan.workload, plan.placement
    sizes = (placement.tensor_parallel_size, placement.pipeline_parallel_size)
    servers, engines = replicas_of(plan), num_engines(plan)
    each = f" on each of {servers} servers" if servers > 1 else f" on each of {engines} engines" if engines > 1 else ""
    share, cache_bytes = placement.gpu_memory_utilization, placement.kv_cache_memory_bytes
    rows: list[tuple[str, str | None]] = [
        ("max_model_len", f"{format_count(workload.max_model_len)} tokens"),
        ("max_num_seqs", format_count(workload.max_num_seqs)),
        ("max_num_batched_tokens", format_count(workload.max_num_batched_tokens)),
        (
            "KV cache",
            f"{format_count(plan.kv_cache_tokens)} tokens: {plan.max_concurrency:g} × max_model_len at once{each}"
            if plan.kv_cache_tokens
            else None,
        ),
        ("parallel", f"tensor {sizes[0]}, pipeline {sizes[1]}" if max(sizes) > 1 else None),
        ("gpu_memory_utilization", f"{share:g} of the whole card" if share else None),
        ("kv_cache_memory_bytes", format_bytes(cache_bytes) if cache_bytes else None),
        ("device_map", _describe_map(plan) if placement.device_map else None),
        ("pinned RAM", _pinned(plan)),
        ("cpu_activations", "int8: rounded in groups of 64" if plan.cpu_activations == "int8" else None),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value is not None:
            grid.add_row(Text(name, style="bold"), value)
    return grid


def _pinned(plan: Plan) -> str | None:
    """Weights in RAM of which cards read rows; those that a map of modules places have lines of their own."""
    held = plan.placement.offloaded_bytes.get("cpu", 0)
    return f"{format_bytes(held)}: tables of n-grams" if held and not plan.placement.device_map else None


def _beside(plan: Plan) -> str:
    """The planned RAM of the service's other processes."""
    processes = [f"{process.name} {format_bytes(process.num_bytes)}" for process in plan.host]
    return f"Also in RAM: {' · '.join(processes)}"


def _describe_map(plan: Plan) -> str:
    places = plan.placement.device_map
    if not isinstance(places, dict):
        return str(places)
    counts = Counter(places.values())
    names = {"cpu": "in RAM", "disk": "on disk"}
    return ", ".join(f"{count} modules {names.get(str(place), f'on card {place}')}" for place, count in counts.items())


def _terms(device: DevicePlan, count: int) -> RenderableType:
    """The terms of one device, or of `count` identical ones."""
    name = f"each of {count} × {device.name}" if count > 1 else device.name
    return Group(Text(f"How {name} is counted:", style="bold"), *map(explained, device.terms))
