"""Layers in RAM or on disk, which the transformers engine offers to plans of every engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qserve.engines.transformers.plan.options import Offload, TransformersOptions
from qserve.planner.candidate import Candidate
from qserve.planner.changes import ChangeGroup, ChangeKind, change_of

__all__ = ["suggestions"]

_UNSERVED = "enable_lora"  # it serves no adapters


def suggestions(candidate: Candidate) -> Iterator[ChangeGroup]:
    """Offloading, where nothing is offloaded yet."""
    request, options = candidate.request, candidate.request.of(TransformersOptions)
    wanted = request.given_to_others(TransformersOptions.engine).values()
    needs_another = any(one.name == _UNSERVED for given in wanted for one in given)
    if candidate.on_cpu or options.offload != "none" or needs_another:
        return
    base = request.for_engine(TransformersOptions.engine)
    costs: tuple[tuple[Offload, str, str], ...] = (
        ("cpu", "RAM", "these layers cross the bus for every token"),
        ("disk", "RAM and on disk", "layers on disk are read for every token"),
    )
    changes = (
        change_of(
            candidate,
            f"layers in {place}, by the transformers engine",
            cost,
            base.with_options(replace(options, offload=offload)),
        )
        for offload, place, cost in costs
        if offload == "disk" or not candidate.devices[0].shares_ram  # which has all of the RAM already
    )
    yield ChangeGroup(ChangeKind.OFFLOAD, tuple(changes))
