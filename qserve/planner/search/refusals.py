"""Requests that no engine can serve, and options that the engine in question does not read."""

from __future__ import annotations

from qserve.core.checkpoint import Checkpoint
from qserve.errors import UsageError
from qserve.planner.engine import Engine, engine_named
from qserve.planner.request import PlanRequest

__all__ = ["refuse"]


def refuse(engine: Engine, checkpoint: Checkpoint, request: PlanRequest) -> None:
    """Raises UsageError for a request that contradicts itself or the model."""
    for owner, unread in request.given_to_others(engine.name).items():
        raise UsageError(
            f"{', '.join(one.flag for one in unread)}: {engine_named(owner).planner.title}'s alone, and this plan is "
            f"for {engine.planner.title}; leave it out, or give --engine {owner}"
        )
    positions = checkpoint.spec.max_position_embeddings
    if request.max_model_len is not None and request.max_model_len > positions:
        raise UsageError(
            f"--max-model-len {request.max_model_len}: {checkpoint.id} has {positions} positions; give that or less (a "
            "longer context needs YaRN: --hf-overrides, or rope_parameters in its config.json)"
        )
