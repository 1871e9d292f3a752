"""`qserve.plan`: the arithmetic, without a process and without torch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from qserve.cli.doctor.measured import measured_speed
from qserve.cli.options.planning import hardware_of, request_of
from qserve.cli.plan.next_step import with_serving_command
from qserve.cli.state import state_folder
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.planner import plan as planned
from qserve.planner.engine import own_engines
from qserve.planner.memory.host import with_host
from qserve.planner.options import options_of
from qserve.planner.request import PlanRequest
from qserve.planner.speed.plan import plan_for_load
from qserve.planner.speed.quantization import weighed_by_speed
from qserve.planner.speed.request import SpeedRequest

__all__ = ["Plan", "plan"]


class Plan(planned.Plan):
    """A plan that prints as `qserve plan` does; a notebook shows it with bars."""

    def __str__(self) -> str:
        from qserve.cli.plan.show import plan_text  # rich, which a plan that nobody prints does without

        return plan_text(self)


def plan(model: str, *, gpu: str | None = None, **options: Any) -> Plan:
    """Does `model` fit, with which quantization, placement and limits?

    Args:
        model: a folder, a hub id, a short name, or `demo`.
        gpu: cards that are not here (`rtx-4090:2`), `none` for the CPU; None: this machine's own.
        options: the flags of `qserve plan` by name: `quant`, `max_model_len`, `max_num_seqs`, `engine`, …

    A plan that does not fit is a plan: `fits` is False, `why_not` and `suggestions` say the rest; `print` shows what
    the command prints. What earlier runs measured is left out; the command takes it into account. Raises UsageError,
    ModelNotFound, BrokenCheckpoint or UnknownArchitecture for what can't be planned.

    """
    held = (PlanRequest, *(engine.planner.options for engine in own_engines()))
    known = {one.name for holder in held if holder is not None for one in options_of(holder)}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(f"qserve.plan has no option {unknown[0]!r}; it takes {', '.join(sorted(known))}")
    hardware, asked = with_host(hardware_of(gpu)), request_of(options)
    checkpoint = resolve(model)
    measured = measured_speed(state_folder(None), checkpoint, hardware, gpu, is_off=True)
    weighed = weighed_by_speed(checkpoint, hardware, asked, measured)
    checkpoint = replace(checkpoint, messages=(*checkpoint.messages, *filter(None, (weighed.why,))))
    found = plan_for_load(checkpoint, hardware, weighed.request, SpeedRequest(measured=measured), asked)
    found = with_serving_command(found, {"--model": model, **asked.flags()}, gpu, hardware)
    return Plan(**{one.name: getattr(found, one.name) for one in fields(found)})
