"""Requests that no engine can serve, and options that the engine in question does not read."""

from __future__ import annotations

import math
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.plan_only import backend_of
from qserve.errors import UsageError
from qserve.planner.engine import PLAN_ONLY, Engine, engine_for, engine_named, own_engines
from qserve.planner.request import PlanRequest

__all__ = ["refuse", "refuse_length", "refuse_on_plan_only", "stretched_to", "stretching_hint"]

_MOST_STRETCHED = 8.0
# Qwen3's 40960 are 32768 that it was trained for and room for an answer; its card stretches the first.
_TRAINED = {40960: 32768}


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
        raise UsageError(
            f"--max-model-len {wanted}: {checkpoint.id} has {positions} positions{where}; "
            f"give that or less{_stretching(engine, checkpoint, wanted)}"
        )


def stretching_hint(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: int) -> str:
    """Half a sentence on how the planned engine takes `wanted` positions; empty where YaRN is no help."""
    engine = engine_for(hardware, request)
    return _stretching(engine, engine.planner.as_served(checkpoint, request), wanted)


def _stretching(engine: Engine, checkpoint: Checkpoint, wanted: int) -> str:
    keys = stretched_to(checkpoint, wanted)
    return f", or stretch them by YaRN: {engine.planner.override_hint(keys)}" if keys else ""


def stretched_to(checkpoint: Checkpoint, wanted: int) -> dict[str, Any] | None:
    """Keys of config.json with which every engine and release takes `wanted` positions; None where YaRN is no help.

    It was trained for four times the positions and holds for a little more; what is stretched otherwise stays so.
    """
    rope = checkpoint.spec.rope
    original = _TRAINED.get(int(rope.original), int(rope.original))
    factor = math.ceil(2 * wanted / original) / 2
    if rope.kind not in ("default", "mrope", "yarn") or factor > _MOST_STRETCHED:
        return None
    if rope.kind == "yarn":
        factor = max(factor, rope.factor or 1.0)
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    over = {"rope_parameters": yarn, "max_position_embeddings": int(original * factor)}
    return checkpoint.overridden(over).override_of(over)
