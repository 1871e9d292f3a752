"""The memory plans among which a layout is chosen: every quantization and number of ranks that fits."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.schemes import FAMILIES, SCHEMES
from qserve.errors import QserveError
from qserve.planner.engine import changed_request, option_value
from qserve.planner.make import make_plan
from qserve.planner.packed import packed_base
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.terms.engine_costs import has_speed, launch_bound_engines

__all__ = ["FittingPlans", "compared", "words_of_four_bits"]

_COMPARED = ("fp8", "awq", "gptq-int4")


def compared(hardware: Hardware) -> tuple[str, ...]:
    """What is counted beside the quantization that quality prefers, where it is the planner's to choose, best first.

    Of cards that are planned for only whatever their row names in fewer than 16 bit.
    """
    card = hardware.plan_only
    if card is None:
        return _COMPARED
    named = sorted(card.schemes, key=lambda scheme: SCHEMES[scheme].quality, reverse=True)
    return tuple(scheme for scheme in named if SCHEMES[scheme].bits < 16)


def words_of_four_bits(hardware: Hardware) -> str:
    """What --quant takes to hear why no layout in 4 bit runs there."""
    return "4bit" if hardware.plan_only is not None else next(one for one in _COMPARED if SCHEMES[one].bits == 4)


class FittingPlans:
    """Of one checkpoint, each made once: what would help a load is asked of the same layouts under other loads."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._made: dict[tuple[Hardware, PlanRequest], tuple[Plan, ...]] = {}

    def of(self, hardware: Hardware, request: PlanRequest) -> tuple[Plan, ...]:
        """A plan for every quantization and number of ranks that fits, each once."""
        key = hardware, request
        if key not in self._made:
            self._made[key] = tuple(_plans(self.checkpoint, hardware, request))
        return self._made[key]


def _plans(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Plan]:
    """A word lets the planner choose among the maker's checkpoints; those by others are loaded by an exact scheme."""
    seen = set()
    is_chosen = request.quant in FAMILIES and checkpoint.spec.quantization is None
    for scheme in _schemes(checkpoint, hardware, request):
        for ranks in _ranks(hardware, request):
            wanted = changed_request(request, quant=scheme, tensor_parallel_size=ranks)
            try:
                plan = make_plan(checkpoint, hardware, wanted, with_suggestions=False)
            except QserveError:
                continue
            if is_chosen and packed_base(plan.quant.checkpoint) is not None:
                continue
            key = (plan.quant.scheme, plan.placement.tensor_parallel_size, plan.placement.pipeline_parallel_size)
            if plan.fits and key not in seen and has_speed(plan.engine):
                seen.add(key)
                yield plan


def _schemes(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> list[str]:
    if request.quant in FAMILIES and checkpoint.spec.quantization is None:
        others = compared(hardware) if request.quant == "auto" else FAMILIES[request.quant]
        return [request.quant, *others]
    return [request.quant]


def _ranks(hardware: Hardware, request: PlanRequest) -> list[int | None]:
    fixed = option_value(request, "tensor_parallel_size")
    if fixed or option_value(request, "pipeline_parallel_size") or request.engine in launch_bound_engines():
        return [fixed]
    count = len(hardware.devices)
    return [ranks for ranks in (1, 2, 4, 8, 16) if ranks <= count] or [None]
