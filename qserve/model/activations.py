"""The plan's word on activations, put into effect on a loaded model."""

from __future__ import annotations

from typing import Any

from qserve.model.cpu.activations import round_activations
from qserve.model.cpu.build import library, why_none
from qserve.planner.plan import Plan

__all__ = ["rounded_activations"]


def rounded_activations(model: Any, plan: Plan) -> tuple[str, ...]:
    """Have the layers of `model` round activations where `plan` says so; a note where none can."""
    if plan.cpu_activations == "exact":
        return ()
    if library() is not None and round_activations(model):
        return ()
    why = (
        why_none()
        or "no layer of it has weights in a format, and the processor instructions, that they are multiplied by"
    )
    return (f"activations stay in 16 bit (--cpu-activations int8 rounds them): {why}",)
