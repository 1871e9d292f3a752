"""What a user should know about a plan for the transformers engine beside its figures."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.core.schemes import SCHEMES
from qserve.core.wheels import TESTED_TORCH
from qserve.engines.transformers.plan.estimate import TransformersEstimate
from qserve.engines.transformers.plan.options import TransformersOptions
from qserve.engines.transformers.plan.packages import package_notes
from qserve.planner.candidate import Candidate
from qserve.planner.memory.resident_weights import quantizes_experts
from qserve.planner.notes import length_note, old_card_note
from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = ["notes_on"]


def notes_on(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """Sentences, the most important first."""
    yield from package_notes(candidate)
    yield from old_card_note(() if candidate.on_cpu else candidate.devices, TESTED_TORCH)
    if SCHEMES[candidate.quant.scheme].by_bitsandbytes and candidate.spec.moe and not _quantizes_experts(candidate):
        yield (
            "Experts, most of this model, stay in 16 bit: bitsandbytes does not quantize them in transformers 5 "
            "(bitsandbytes#1849)"
        )
    yield from _without_graphs(candidate, plan)
    if candidate.request.of(TransformersOptions).cpu_activations == "int8" and candidate.cpu_activations == "exact":
        yield (
            "--cpu-activations int8 changes nothing here: it needs weights of 4 or 8 bits (not fp8) in bf16 and a CPU "
            f"with AVX2 or AVX512-VNNI; this is {candidate.quant.scheme} on {candidate.devices[0].name}"
        )
    # A scorer gets a usual length, not the longest that fits.
    is_usual = candidate.spec.head.kind == "score"
    yield from length_note(candidate, plan, "--max-model-len sets more" if is_usual else "no more fits")


def _quantizes_experts(candidate: Candidate) -> bool:
    return candidate.in_flight is not None and quantizes_experts(candidate.spec, candidate.dtype, candidate.devices[0])


def _without_graphs(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """Of one card that holds the model, but not the graphs of its steps as well."""
    estimate = TransformersEstimate(candidate, plan.workload.max_num_seqs, plan.workload.max_num_batched_tokens)
    on_one_card = plan.fits and isinstance(plan.placement.device_map, str)
    if on_one_card and estimate.num_graphs and not any(device.cuda_graphs_bytes for device in plan.devices):
        yield (
            f"No CUDA graphs: {format_bytes(estimate.graphs.num_bytes)} for them do not fit; a lower --max-num-seqs or "
            "--max-model-len makes room"
        )
