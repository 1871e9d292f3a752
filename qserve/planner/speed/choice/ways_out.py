"""What would keep the targets where the machine does not: each change planned and simulated before it is offered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qserve.core.hardware import Hardware
from qserve.planner.engine import changed_request
from qserve.planner.plan import Suggestion
from qserve.planner.request import PlanRequest
from qserve.planner.speed.fitting_plans import FittingPlans
from qserve.planner.speed.load import Load
from qserve.planner.speed.price import gpu_key
from qserve.planner.speed.rate import KEPT_SHARE
from qserve.planner.speed.request import SpeedRequest
from qserve.planner.speed.search import Layout, choose_layout, device_for, layouts_for, recounted, shortened

__all__ = ["ways_out"]

Change = tuple[str, str, Hardware, PlanRequest, Load]
"""In words, as flags, and what is planned then."""


def ways_out(
    plans: FittingPlans, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest, missed: Layout
) -> tuple[Suggestion, ...]:
    """Changes after which the targets are kept, without targets requests are answered; of each kind the smallest."""
    load = wanted.named_load
    kinds = (
        _fewer_bits(hardware, request, load),
        _cached_prefixes(hardware, request, load),
        _more_cards(hardware, request, load),
        _lower_rate(hardware, request, load, missed),
        _shorter_inputs(hardware, request, load),
    )
    found = (next(_that_keep(kind, plans, wanted), None) for kind in kinds)
    return tuple(one for one in found if one is not None)


def _that_keep(kind: Iterator[Change], plans: FittingPlans, wanted: SpeedRequest) -> Iterator[Suggestion]:
    for change, flags, hardware, request, load in kind:
        layouts = layouts_for(plans, hardware, request, replace(wanted, load=shortened(load)), only_keeping=True)
        if not layouts:
            continue
        best = choose_layout(layouts, wanted.targets)
        if best.kept >= KEPT_SHARE:  # of few requests; now of all
            device = device_for(hardware, best.plan)
            best = recounted(best, plans.checkpoint.spec, device, replace(wanted, load=load))
        if best.kept >= KEPT_SHARE:
            figures = best.speed.figures
            then = f"{100 * best.kept:.0f} % keep the targets" if wanted.targets else "such requests are answered"
            cost = f"then {then}: {best.name}, TTFT {figures.ttft_ms.mean:.0f} ms, TPOT {figures.tpot_ms.mean:.1f} ms"
            yield Suggestion(change, cost, flags)


def _fewer_bits(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    for scheme in ("fp8", "awq", "gptq-int4"):
        if request.quant not in ("auto", scheme):
            yield f"quantize to {scheme}", f"--quant {scheme}", hardware, replace(request, quant=scheme), load


def _more_cards(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    if not hardware.devices:
        return
    name, have = hardware.devices[0].name, len(hardware.devices)
    free = changed_request(request, tensor_parallel_size=None)
    for count in (have + 1, 2 * have, 4 * have, 8 * have):
        if have < count <= 16:
            machine = replace(hardware, devices=(hardware.devices[0],) * count)
            yield (
                f"{count} × {name} instead of {have}",
                f"--gpu {gpu_key(hardware.devices[0])}:{count}",
                machine,
                free,
                load,
            )


def _shorter_inputs(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    for share in (0.75, 0.5, 0.25):
        tokens = int(load.input_tokens * share)
        if tokens >= 32:
            yield (
                f"prompts of {tokens} tokens",
                f"--input {tokens}",
                hardware,
                request,
                replace(load, input_tokens=tokens),
            )


def _cached_prefixes(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    for share in (0.5, 0.8):
        if load.prefix_share < share and not load.trace:
            text = f"{100 * share:.0f} % of every prompt from the prefix cache (a shared system prompt first)"
            yield text, f"--prefix-share {share}", hardware, request, replace(load, prefix_share=share)


def _lower_rate(hardware: Hardware, request: PlanRequest, load: Load, missed: Layout) -> Iterator[Change]:
    rate = missed.speed.max_rps
    if load.rps and rate and rate < load.rps:
        lower = int(rate * 10) / 10 or round(rate, 2)
        yield f"{lower:g} requests/s on these cards", f"--rps {lower:g}", hardware, request, replace(load, rps=lower)
    for name in ("concurrency", "users"):
        count = getattr(load, name)
        for share in (0.75, 0.5, 0.25):
            if count and int(count * share):
                fewer = int(count * share)
                changed: dict[str, Any] = {name: fewer}
                yield f"{fewer} {name}", f"--{name} {fewer}", hardware, request, replace(load, **changed)
