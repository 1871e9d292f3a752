"""`qserve.plan`: the arithmetic, without a process and without torch."""

from __future__ import annotations

from typing import Any

from qserve.cli.options.planning import hardware_of, request_of
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.planner import Plan, make_plan
from qserve.planner.engine import own_engines
from qserve.planner.memory.host import with_host
from qserve.planner.options import options_of
from qserve.planner.request import PlanRequest

__all__ = ["plan"]


def plan(model: str, *, gpu: str | None = None, **options: Any) -> Plan:
    """Does `model` fit, with which quantization, placement and limits?

    Args:
        model: a folder, a hub id, an alias, or `demo`.
        gpu: cards that are not here (`rtx-4090:2`), `none` for the CPU; None: this machine's own.
        options: the flags of `qserve plan` by name: `quant`, `max_model_len`, `max_num_seqs`, `engine`, …

    A plan that does not fit is a plan: `fits` is False, `why_not` and `suggestions` say the rest. What earlier runs
    measured is left out; the command takes it into account. Raises UsageError, ModelNotFound, BrokenCheckpoint or
    UnknownArchitecture for what can't be planned.

    """
    held = (PlanRequest, *(engine.planner.options for engine in own_engines()))
    known = {one.name for holder in held if holder is not None for one in options_of(holder)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"qserve.plan has no option {unknown[0]!r}; it takes {', '.join(sorted(known))}")
    return make_plan(resolve(model), with_host(hardware_of(gpu)), request_of(options))
