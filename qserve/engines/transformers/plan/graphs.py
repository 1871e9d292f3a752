"""CUDA graphs of decoding steps: which candidates capture them, and what they hold of the card."""

from __future__ import annotations

from qserve.core.families import has_dense_decoder
from qserve.core.release import parse_release
from qserve.engines.transformers.kernels.decode_sizes import num_graphs
from qserve.engines.transformers.plan.constants import GRAPH_BYTES_FIRST, GRAPH_BYTES_PER_LAYER
from qserve.engines.transformers.plan.releases import CAPTURES_SINCE
from qserve.planner.calibration import Correction
from qserve.planner.candidate import Candidate
from qserve.planner.constants import Constant

__all__ = ["graphs_held", "num_captured"]


def num_captured(candidate: Candidate, max_num_seqs: int) -> int:
    """Steps that are captured where one card holds the model."""
    if candidate.on_cpu or parse_release(candidate.engine_version) < CAPTURES_SINCE or not _is_capturable(candidate):
        return 0
    return num_graphs(max_num_seqs)


def _is_capturable(candidate: Candidate) -> bool:
    """Dense decoders, as engines/transformers/worker/decoding/choose.py has it."""
    spec = candidate.spec
    is_plain = spec.head.kind != "score" and not spec.num_sliding_layers
    return has_dense_decoder(spec.architecture) and is_plain


def graphs_held(num: int, num_layers: int, scratch_bytes: int, correction: Correction | None) -> Constant:
    """What `num` graphs hold: the first what all share, each the launches of its layers.

    `scratch_bytes` of it are what a product by a quantized weight unpacks: graphs have memory of their own. A
    measurement that was higher leaves nothing of the band.
    """
    if not num:
        return Constant(0, 0, 0, "none are captured")
    first, each = GRAPH_BYTES_FIRST, GRAPH_BYTES_PER_LAYER
    low, typical, high = (
        getattr(first, name) + scratch_bytes + num * num_layers * getattr(each, name)
        for name in ("low_bytes", "num_bytes", "high_bytes")
    )
    if correction is None:
        return Constant(typical, low, high, each.source)
    moved = correction.moved(typical)
    return Constant(moved, moved, moved, correction.source)
