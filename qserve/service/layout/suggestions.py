"""What would keep the targets where the machine does not: each change planned and simulated before it is offered."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qserve.core.hardware import Hardware, known_gpus
from qserve.planner.engine import changed_request, option_value
from qserve.planner.memory.host import shared_card
from qserve.planner.plan import Suggestion
from qserve.planner.request import PlanRequest
from qserve.planner.search.gpu_flag import gpu_flag
from qserve.planner.speed.load import Load
from qserve.planner.speed.price import hourly_price, price_table
from qserve.planner.speed.rate import KEPT_SHARE
from qserve.service.layout.fitting_plans import FittingPlans, compared
from qserve.service.layout.search import Layout, choose_layout, device_for, layouts_for, recounted, shortened
from qserve.service.load import SpeedRequest
from qserve.units import format_count, format_ms

__all__ = ["suggestions"]

_MOST_TRIED = 5
"""Layouts that keep the targets for few requests, and are looked at under the whole load."""
Change = tuple[str, str, Hardware, PlanRequest, Load]
"""In words, as flags, and what is planned then."""


def suggestions(
    plans: FittingPlans, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest, missed: Layout
) -> tuple[Suggestion, ...]:
    """Changes after which the targets are kept, without targets requests are answered; of each kind the smallest.

    Another card only where more of the same do not help.
    """
    load, is_fixed = wanted.named_load, bool(option_value(request, "tensor_parallel_size"))

    def first(*kinds: Iterator[Change]) -> Suggestion | None:
        return next((one for kind in kinds for one in _that_keep(kind, plans, wanted, is_fixed)), None)

    found = (
        first(_fewer_bits(hardware, request, load)),
        first(_cached_prefixes(hardware, request, load)),
        first(_more_cards(hardware, request, load), _other_cards(hardware, request, load, wanted)),
        first(_lower_rate(hardware, request, load, missed)),
        first(_shorter_inputs(hardware, request, load)),
    )
    return tuple(one for one in found if one is not None)


def _that_keep(
    kind: Iterator[Change], plans: FittingPlans, wanted: SpeedRequest, is_fixed: bool
) -> Iterator[Suggestion]:
    """`is_fixed`: the user named the ranks; a change that leaves them open has to name those that keep the targets."""
    for change, flags, hardware, request, load in kind:
        best = _kept_by(plans, hardware, request, replace(wanted, load=load))
        if best is None:
            continue
        if is_fixed and not option_value(request, "tensor_parallel_size"):
            flags += f" --tensor-parallel-size {best.plan.placement.tensor_parallel_size}"
        figures = best.speed.figures
        then = f"{100 * best.kept:.0f} % keep the targets" if wanted.targets else "requests do not pile up"
        latency = f"TTFT {format_ms(figures.ttft_ms.mean)}, TPOT {format_ms(figures.tpot_ms.mean)}"
        cost = f"{then}: {best.name}, {latency}"
        yield Suggestion(change, cost, flags)


def _kept_by(plans: FittingPlans, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest) -> Layout | None:
    """The layout that keeps the targets: of those that do for few requests the first that does for all."""
    few = replace(wanted, load=shortened(wanted.named_load))
    layouts = layouts_for(plans, hardware, request, few, only_keeping=True)
    for _ in range(_MOST_TRIED):
        if not layouts:
            return None
        best = choose_layout(layouts, wanted.targets)
        if best.kept < KEPT_SHARE:
            return None
        found = recounted(best, plans.checkpoint.spec, device_for(hardware, best.plan), wanted)
        if found.kept >= KEPT_SHARE:
            return found
        layouts = [one for one in layouts if one.cards > best.cards or one.quality < best.quality]
    return None


def _fewer_bits(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    for scheme in compared(hardware):
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
                f"--gpu {shlex.quote(gpu_flag(hardware.devices[0], count))}",
                machine,
                free,
                load,
            )


def _other_cards(hardware: Hardware, request: PlanRequest, load: Load, wanted: SpeedRequest) -> Iterator[Change]:
    """As many of another card that has a price, one where there was none, cheapest first."""
    mine, count = {one.name for one in hardware.devices}, len(hardware.devices) or 1
    free = changed_request(request, tensor_parallel_size=None)
    known = ((key, known_gpus().get(key)) for key in price_table(wanted.prices))
    others = [(hourly_price(card, wanted.prices), key, card) for key, card in known if card and card.name not in mine]
    for _, key, card in sorted((one for one in others if one[0] is not None), key=lambda one: (one[0], one[1])):
        machine = replace(hardware, devices=(shared_card(card, hardware.host_bytes),) * count, notes=())
        name = f"{key}:{count}" if count > 1 else key
        yield f"{count} × {card.name}", f"--gpu {name}", machine, free, load


def _shorter_inputs(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    for share in (0.75, 0.5, 0.25):
        tokens = int(load.input_tokens * share)
        if tokens >= 32:
            yield (
                f"prompts of {format_count(tokens)} tokens",
                f"--input {tokens}",
                hardware,
                request,
                replace(load, input_tokens=tokens),
            )


def _cached_prefixes(hardware: Hardware, request: PlanRequest, load: Load) -> Iterator[Change]:
    for share in (0.5, 0.8):
        if load.prefix_share < share and not load.trace:
            text = f"{100 * share:.0f} % of every prompt from the prefix cache, by a shared system prompt"
            yield text, f"--prefix-share {share}", hardware, request, replace(load, prefix_share=share)


def _lower_rate(hardware: Hardware, request: PlanRequest, load: Load, missed: Layout) -> Iterator[Change]:
    rate = missed.speed.max_rps
    if load.rps and rate and rate < load.rps:
        # Other arrivals than those that the highest rate was found with may need a little less.
        for share in (1.0, 0.95, 0.9, 0.8):
            lower = int(share * rate * 10) / 10 or round(share * rate, 2)
            slower = replace(load, rps=lower)
            yield f"{lower:g} requests/s on these cards", f"--rps {lower:g}", hardware, request, slower
    for name, words in (("concurrency", "streams"), ("users", "users"), ("burst", "requests at once")):
        count = getattr(load, name) or 0
        fewer = [int(count * share) for share in (0.75, 0.5, 0.25, 0.125, 0.0625)]
        for number in sorted({*fewer, 1} - {0}, reverse=True) if count > 1 else ():
            changed: dict[str, Any] = {name: number}
            yield f"{number} {words}", f"--{name} {number}", hardware, request, replace(load, **changed)
