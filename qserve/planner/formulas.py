"""Formulas of --explain that engines share."""

from __future__ import annotations

from collections import Counter

from qserve.planner.candidate import Candidate
from qserve.units import format_bytes

__all__ = ["weights_formula"]

_PLURALS = {
    "embedding": "embeddings",
    "lm_head": "lm_head",
    "linear": "linear layers",
    "expert": "experts",
    "stream_gate": "gates of residual streams",
    "ngram_table": "tables of n-grams",
}


def weights_formula(candidate: Candidate) -> str:
    """Bytes by role: what each kind of tensor takes before it is shared out."""
    sizes: Counter[str] = Counter()
    for tensor in candidate.tensors:
        sizes[_PLURALS.get(tensor.role, "norms and the rest")] += tensor.nbytes
    parts = " + ".join(f"{format_bytes(size)} {name}" for name, size in sizes.most_common())
    in_flight = f", linear layers quantized to {candidate.quant.scheme} while loading" if candidate.in_flight else ""
    shared = f", over {candidate.num_ranks} ranks" if candidate.num_ranks > 1 else ""
    return f"{parts}{in_flight}{shared}"
