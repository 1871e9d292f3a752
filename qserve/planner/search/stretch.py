"""A context beyond the positions that a model was trained for: by YaRN, and by nothing else.

Source: the cards of Qwen2.5 and Qwen3, arXiv:2309.00071; transformers 5.19 modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.rope import Rope
from qserve.errors import UsageError
from qserve.planner.request import PlanRequest

__all__ = ["most_stretched", "overrides_of", "stretched_to", "warning_of"]

_MOST_STRETCHED = 8.0
# Qwen3's 40960 are 32768 that it was trained for and room for an answer; its card stretches the first.
_TRAINED = {40960: 32768}
_STRETCHABLE = ("default", "mrope", "yarn")


def overrides_of(checkpoint: Checkpoint, request: PlanRequest) -> Mapping[str, Any]:
    """Keys in the place of config.json's own: those of --hf-overrides, or of a --context beyond its positions.

    Raises UsageError where YaRN does not reach so far.
    """
    wanted, spec = request.context, checkpoint.spec
    # Not every release of an engine reaches as far as the factor of a yarn rope: it is told the positions, too.
    positions = spec.rope.positions if spec.rope.kind == "yarn" else spec.max_position_embeddings
    if wanted is None or wanted <= positions:
        return request.overrides
    keys = stretched_to(checkpoint, wanted)
    if keys is None:
        raise UsageError(f"--context {wanted}: {_why_not(checkpoint)}; give as many or fewer")
    return keys


def _why_not(checkpoint: Checkpoint) -> str:
    spec = checkpoint.spec
    if spec.rope.kind not in _STRETCHABLE:
        return (
            f"{checkpoint.id} has {spec.max_position_embeddings} positions, by a rope of type {spec.rope.kind} that "
            "YaRN can't stretch"
        )
    most = most_stretched(spec.rope)
    return f"{checkpoint.id} has {spec.max_position_embeddings} positions, and YaRN stretches them to {most} at most"


def most_stretched(rope: Rope) -> int:
    """The most positions that YaRN stretches it to; those that it has where YaRN is no help."""
    return int(_trained(rope) * _MOST_STRETCHED) if rope.kind in _STRETCHABLE else rope.reach


def _trained(rope: Rope) -> int:
    original = int(rope.original)
    return _TRAINED.get(original, original)


def stretched_to(checkpoint: Checkpoint, wanted: int) -> dict[str, Any] | None:
    """Keys of config.json with which every engine and release takes `wanted` positions; None where YaRN is no help.

    It was trained for four times the positions and holds for a little more; what is stretched otherwise stays so.
    """
    rope = checkpoint.spec.rope
    original = _trained(rope)
    factor = math.ceil(2 * wanted / original) / 2
    if rope.kind not in _STRETCHABLE or factor > _MOST_STRETCHED:
        return None
    if rope.kind == "yarn":
        factor = max(factor, rope.factor or 1.0)
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    over = {"rope_parameters": yarn, "max_position_embeddings": int(original * factor)}
    return checkpoint.overridden(over).override_of(over)


def warning_of(checkpoint: Checkpoint, served: Checkpoint, overrides: Mapping[str, Any]) -> tuple[str, ...]:
    """What it costs that `served` has positions that --context or --hf-overrides stretched; none where they did not."""
    before, now = checkpoint.spec.rope, served.spec.rope
    if not overrides or now.kind != "yarn" or now.stretched == before.stretched:
        return ()
    return (
        f"YaRN stretches {int(now.original):,} positions to {now.reach:,}, for short texts as well, which it may cost "
        "quality: leave it out where no text needs it",
    )
