"""Requests that no engine can serve, and options that the engine in question does not read."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.plan_only import backend_of
from qserve.errors import UsageError
from qserve.planner.engine import PLAN_ONLY, Engine, engine_for, engine_named, own_engines
from qserve.planner.request import PlanRequest

__all__ = ["refuse", "refuse_length", "refuse_on_plan_only", "stretching_hint"]


def refuse(engine: Engine, checkpoint: Checkpoint, request: PlanRequest) -> None:
    """Raises UsageError for a request that contradicts itself or the model."""
    for owner, unread in request.given_to_others(engine.name).items():
        if engine.name == PLAN_ONLY:
            flags = ", ".join(one.flag for one in unread)
            raise UsageError(
                f"{flags}: no engine that reads it runs on these cards, which are planned for only; leave it out"
            )
        raise UsageError(
            f"{', '.join(one.flag for one in unread)}: {engine_named(owner).planner.title}'s alone, and this plan is "
            f"for {engine.planner.title}; leave it out, or give --engine {owner}"
        )
    if request.hf_overrides is not None and not engine.planner.reads_overrides:
        raise UsageError(f"--hf-overrides: {engine.planner.title} does not read it; leave it out")
    refuse_length(engine, checkpoint, request)


def refuse_on_plan_only(engine: Engine, hardware: Hardware) -> None:
    """Raises UsageError for an engine of qserve on a card that none of them runs on."""
    device = hardware.plan_only
    if device is not None and engine in own_engines():
        raise UsageError(
            f"{backend_of(device.kind).why_no_engine(device.name)}; chat models are planned for it, without --engine, "
            "and --gpu none takes the CPU"
        )


def refuse_length(engine: Engine, checkpoint: Checkpoint, request: PlanRequest) -> None:
    """Raises UsageError for more positions than the engine has of the checkpoint `as_served`, with a way to more."""
    positions, wanted = checkpoint.spec.max_position_embeddings, request.max_model_len
    if wanted is not None and wanted > positions:
        release = request.engine_version or engine.planner.default_version
        where = f" on {engine.name} {release}" if engine.name != PLAN_ONLY else ""
        flag = "--context" if wanted == request.context else "--max-model-len"
        raise UsageError(
            f"{flag} {wanted}: {checkpoint.id} has {positions} positions{where}; "
            f"give that or less{_stretching(engine, checkpoint, request, wanted)}"
        )


def stretching_hint(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: int) -> str:
    """Half a sentence on how the planned engine takes `wanted` positions; empty where YaRN is no help."""
    engine = engine_for(hardware, request)
    return _stretching(engine, engine.planner.as_served(checkpoint, request), request, wanted)


def _stretching(engine: Engine, checkpoint: Checkpoint, request: PlanRequest, wanted: int) -> str:
    """Where that flag gives the engine so many; `checkpoint` is the one that it serves without."""
    stretched = replace(request, context=wanted, max_model_len=wanted, hf_overrides=None)
    try:
        served = engine.planner.as_served(checkpoint, stretched)
    except UsageError:
        return ""
    is_enough = served.spec.max_position_embeddings >= wanted and engine.planner.reads_overrides
    return f", or stretch them by YaRN: --context {wanted}" if is_enough else ""
