"""A plan as a person likes to read it: one bar per device, the terms in colours, and what is left."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from qserve.cli.terminal import console_of
from qserve.planner.layout_rows import layout_rows
from qserve.planner.plan import DevicePlan, Plan
from qserve.units import GIB, format_bytes

__all__ = ["show_plan"]

_TERMS = (
    ("weights", "weights_bytes", "blue"),
    ("KV cache", "kv_cache_bytes", "green"),
    ("activations", "activations_bytes", "yellow"),
    ("CUDA graphs", "cuda_graphs_bytes", "magenta"),
    ("runtime", "runtime_bytes", "cyan"),
    ("others", "used_by_others_bytes", "bright_black"),
)
_BAR_WIDTH = 60


def show_plan(plan: Plan, explain: bool = False, console: Console | None = None) -> None:
    """Prints the plan; with `explain` every term's formula, numbers and source."""
    console = console or console_of()
    console.print(_headline(plan))
    for device, cards in groupby(plan.devices):
        console.print(_device(device, len(list(cards))))
    for row in layout_rows(plan):
        console.print(Text(row), soft_wrap=True)
    if plan.fits:
        console.print(_limits(plan))
    if explain:
        for device, cards in groupby(plan.devices):
            console.print(_terms(device, len(list(cards))))
        console.print(Text("Good to know:", style="bold"))
        for line in plan.explanations:
            console.print(Text(f"· {line}"))
    for note in plan.notes:
        console.print(Text(f"· {note}", style="dim"))
    if plan.suggestions and not plan.fits:
        console.print(_ways_out(plan))


def _headline(plan: Plan) -> RenderableType:
    verdict, style = (" fits ", "bold white on green") if plan.fits else (" does not fit ", "bold white on red")
    size = f"{plan.model.parameters / 1e9:.2f}B"
    facts = f" {plan.model.id} · {size} · {plan.quant.scheme} · {plan.engine} {plan.engine_version}"
    lines: list[RenderableType] = [Text.assemble((verdict, style), (facts, "bold"))]
    if plan.quant.checkpoint != plan.model.id or plan.quant.in_flight:
        lines.append(Text(f"  loads {plan.quant.checkpoint}: {plan.quant.reason}", style="dim"))
    if plan.why_not:
        lines.append(Text(f"  {plan.why_not}", style="red"))
    return Group(*lines)


def _device(device: DevicePlan, count: int) -> RenderableType:
    """One panel for cards that are alike: the ranks of a stage."""
    free = device.free_bytes
    left = f"{format_bytes(free)} left" if free >= 0 else f"{format_bytes(-free)} too much"
    name = f"{count} × {device.name}, each" if count > 1 else device.name
    title = f"{name} · {format_bytes(device.total_bytes)} · {left}"
    content = Group(_bar(device), _legend(device))
    return Panel(content, title=title, title_align="left", width=_BAR_WIDTH + 18, border_style="dim")


def _bar(device: DevicePlan) -> Text:
    whole = max(device.total_bytes, device.total_bytes - device.free_bytes, 1)
    bar = Text()
    for _, field, colour in _TERMS:
        bar.append("█" * round(getattr(device, field) * _BAR_WIDTH / whole), style=colour)
    return bar.append("░" * max(0, _BAR_WIDTH - len(bar)), style="dim")


def _legend(device: DevicePlan) -> Table:
    """Three terms a row, so that a name is never parted from its figure."""
    grid = Table.grid(padding=(0, 3))
    cells = [
        Text.assemble(("■ ", colour), f"{name} {format_bytes(getattr(device, field))}")
        for name, field, colour in _TERMS
        if getattr(device, field)
    ]
    for start in range(0, len(cells), 3):
        grid.add_row(*cells[start : start + 3])
    return grid


def _limits(plan: Plan) -> RenderableType:
    workload, placement = plan.workload, plan.placement
    sizes = (placement.tensor_parallel_size, placement.pipeline_parallel_size)
    share, cache_bytes = placement.gpu_memory_utilization, placement.kv_cache_memory_bytes
    rows: list[tuple[str, str | None]] = [
        ("max_model_len", f"{workload.max_model_len} tokens"),
        ("max_num_seqs", f"{workload.max_num_seqs}"),
        ("max_num_batched_tokens", f"{workload.max_num_batched_tokens}"),
        ("KV cache", f"{plan.kv_cache_tokens} tokens: {plan.max_concurrency:g} × max_model_len at once"),
        ("parallel", f"tensor {sizes[0]}, pipeline {sizes[1]}" if max(sizes) > 1 else None),
        ("gpu_memory_utilization", f"{share:g} of the whole card" if share else None),
        ("kv_cache_memory_bytes", f"{cache_bytes} ({format_bytes(cache_bytes)})"),
        ("device_map", _describe_map(plan) if placement.device_map else None),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value is not None:
            grid.add_row(Text(name, style="bold"), value)
    return grid


def _describe_map(plan: Plan) -> str:
    places = plan.placement.device_map
    if not isinstance(places, dict):
        return str(places)
    counts: dict[str, int] = {}
    for place in places.values():
        counts[str(place)] = counts.get(str(place), 0) + 1
    return ", ".join(f"{count} modules on {place}" for place, count in counts.items())


def _terms(device: DevicePlan, count: int) -> RenderableType:
    """The account of one device, or of `count` that are alike."""
    name = f"each of {count} × {device.name}" if count > 1 else device.name
    lines: list[RenderableType] = [Text(f"How {name} is counted:", style="bold")]
    for term in device.terms:
        band = f"  ({term.low_bytes / GIB:.2f} to {term.high_bytes / GIB:.2f} GiB)"
        lines.append(Text.assemble((f"{term.name}: {format_bytes(term.num_bytes)}", "bold"), (band, "dim")))
        lines.append(Text(f"  = {term.formula}"))
        lines.append(Text(f"  source: {term.source}", style="dim"))
    return Group(*lines)


def _ways_out(plan: Plan) -> RenderableType:
    lines: list[RenderableType] = [Text("What would fit:", style="bold")]
    for number, suggestion in enumerate(plan.suggestions, 1):
        lines.append(Text(f"{number}. {suggestion.change}", style="green"))
        lines.append(Text(f"   {suggestion.cost}"))
        lines.append(Text(f"   {suggestion.command}", style="cyan"))
    return Group(*lines)
