"""What lengths that vary cost: blocks of torch's allocator that fit no buffer of another length."""

from __future__ import annotations

from qserve.planner.plan import Term
from qserve.planner.training import saved_activations as activations
from qserve.planner.training.resident import Run, term
from qserve.planner.training.training_constants import CACHED, FRAGMENTATION, FRAGMENTATION_RAMP
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["cached_bytes", "fragmentation_term", "length_spread"]


def length_spread(request: TrainingRequest) -> float:
    """From 0, where every batch has the same length, to 1."""
    return min(1.0, FRAGMENTATION_RAMP * (1 - _mean_share(request)))


def fragmentation_term(run: Run, left_bytes: int) -> Term:
    """What the allocator can't use of what it has, at most what is left; it gives free segments back before it fails.

    Without a mean length all batches are taken as full. The upper end is that of any lengths, and of one length too.
    """
    request, varying = run.request, max(0, _varying_bytes(run))
    expected, high = (round(share * varying) for share in (FRAGMENTATION.expected, FRAGMENTATION.high))
    how = f"up to {FRAGMENTATION.expected} × activations and logits, where lengths vary; at most what is left"
    left = max(0, left_bytes)
    return term(
        "fragmentation",
        min(round(length_spread(request) * expected), left),
        how,
        FRAGMENTATION.source,
        0,
        min(high, left),
    )


def cached_bytes(run: Run, left_bytes: int) -> int:
    """Blocks that the allocator keeps while there is room: the driver counts them, and nothing fails for them."""
    request = run.request
    kept = CACHED.expected * _mean_share(request) * length_spread(request) * _varying_bytes(run)
    return max(0, min(round(kept), left_bytes))


def _mean_share(request: TrainingRequest) -> float:
    return min(request.mean_length or request.max_length, request.max_length) / request.max_length


def _varying_bytes(run: Run) -> int:
    """Bytes whose blocks are as large as the batch is long, of the trained model that needs most."""
    request = run.request
    model = max(run.trained, key=lambda model: activations.peak_bytes(model, request))
    if model.tuning == "head":
        return activations.forward_bytes(model, request)
    kept = activations.checkpoint_bytes if request.gradient_checkpointing else activations.saved_bytes
    if request.fused_loss or request.tiled_loss:  # whose chunks are all of one size
        return kept(model, request)
    return kept(model, request) + activations.logits_bytes(model, request)
