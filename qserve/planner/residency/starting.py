"""What a start takes beyond what the model holds afterwards."""

from __future__ import annotations

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.planner.plan import Plan

__all__ = ["starting_bytes"]

# A weight that is quantized while it is loaded: as it is stored, and as it is converted.
_COPIES = 2


def starting_bytes(plan: Plan, checkpoint: Checkpoint) -> int:
    """Of each pool that it is loaded into, in bytes. Files are mapped: the kernel drops their pages where they lack.

    What engines take for their first steps stands in the plan: it is theirs to keep.
    """
    tensors = checkpoint.tensors or tensors_of(checkpoint.spec)
    if not plan.quant.in_flight or not tensors:
        return 0
    return _COPIES * max((one.nbytes for one in tensors if one.role not in ("embedding", "head")), default=0)
