"""Which measurements of earlier starts hold for a candidate, and what they move. Nothing is stored here.

A residual is a term as it was planned, before any correction, and as it was measured. It holds for the same engine,
release and device, and beyond that as far as physics does:

    weights, KV tokens         the same model, quantization and dtypes, on as many ranks
    activations, CUDA graphs   that, and the same step: sequences and tokens at once
    runtime                    on a card any model (context and libraries belong to the engine), on a CPU the same one

What the user fixed is never moved: a KV size in bytes stays those bytes, only how many tokens they hold is corrected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qserve.planner.calibration import CalibratedTerm, Correction, Residual
from qserve.planner.candidate import Candidate
from qserve.planner.plan import Plan
from qserve.planner.term import COLUMNS
from qserve.units import MIB, format_bytes

__all__ = ["Corrections", "corrections_for", "with_corrections"]

Corrections = Mapping[CalibratedTerm, Correction]

# Raised when what the terms of a CPU hold changes: a residual is over the plan of its day, and would take that change
# out of the new plan. Earlier measurements then hold for no candidate, and the next run leaves new ones.
_CPU_TERMS = 3
# A measurement further off than this is of something else (a device shared with others, a bug): it corrects nothing.
_MOST_OF_DEVICE = 0.25
_MOST_TOKENS = 2.0
# A correction that moves less is made, but not told.
_FEWEST_BYTES, _LEAST_OF_DEVICE, _FEWEST_TOKENS = 16 * MIB, 0.001, 0.01


def corrections_for(candidate: Candidate, max_num_seqs: int, max_num_batched_tokens: int) -> Corrections:
    """The newest measurement of each term that holds for this candidate and step."""
    learned = candidate.request.learned
    if not learned:
        return {}
    step = _step_of(candidate, max_num_seqs, max_num_batched_tokens)
    holding = (one for one in learned if _holds(one, candidate, _shape_of(candidate), step))
    return {
        one.term: Correction(one.term, one.planned, one.measured, one.run)
        for one in sorted(holding, key=lambda one: one.unix_s)
    }


def with_corrections(candidate: Candidate, plan: Plan) -> Plan:
    """The plan with its shape and step, what was corrected in it, and a note for each of that."""
    workload = plan.workload
    steps = workload.max_num_seqs, workload.max_num_batched_tokens
    made = corrections_for(candidate, *steps)
    tokens = made.get("kv_cache_tokens")
    if tokens is not None and plan.kv_cache_tokens:
        share = tokens.measured / tokens.planned
        plan = replace(
            plan,
            kv_cache_tokens=plan.kv_cache_tokens * tokens.measured // tokens.planned,
            max_concurrency=round(plan.max_concurrency * share, 2),
        )
    told = [one for one in made.values() if _matters(one, candidate.devices[0].total_bytes)]
    notes = tuple(_note(run, [one for one in told if one.run == run]) for run in dict.fromkeys(one.run for one in told))
    return replace(
        plan,
        shape=_shape_of(candidate),
        step=_step_of(candidate, *steps),
        on_cpu=candidate.on_cpu,
        corrections=tuple(made.values()),
        notes=(*plan.notes, *notes),
    )


def _shape_of(candidate: Candidate) -> str:
    """The model as memory sees it, and over how many ranks it is spread."""
    how = "in flight" if candidate.quant.in_flight else "stored"
    return (
        f"{candidate.spec.architecture} {candidate.checkpoint.parameters} parameters, {candidate.quant.scheme} {how}, "
        f"{candidate.dtype}, kv {candidate.kv_cache_dtype}, {candidate.parallelism}"
    ) + (f", CPU terms {_CPU_TERMS}" if candidate.on_cpu else "")


def _step_of(candidate: Candidate, max_num_seqs: int, max_num_batched_tokens: int) -> str:
    """What a step computes at once, and what decides beside that how much it needs."""
    return ", ".join([f"{max_num_seqs} sequences", f"{max_num_batched_tokens} tokens", *candidate.step_options])


def _holds(one: Residual, candidate: Candidate, shape: str, step: str) -> bool:
    device = candidate.devices[0]
    if (one.engine, one.engine_version, one.device) != (candidate.engine, candidate.engine_version, device.name):
        return False
    if not _is_sane(one, device.total_bytes):
        return False
    if one.term == "runtime" and not one.on_cpu:
        return True
    return one.shape == shape and (one.term not in ("activations", "cuda_graphs") or one.step == step)


def _is_sane(one: Residual, device_bytes: int) -> bool:
    if one.term == "kv_cache_tokens":
        return 0 < one.planned <= _MOST_TOKENS * one.measured and one.measured <= _MOST_TOKENS * one.planned
    return one.measured >= 0 and abs(one.measured - one.planned) <= _MOST_OF_DEVICE * device_bytes


def _matters(correction: Correction, device_bytes: int) -> bool:
    """Whether it moves what fits: not the hundreds of bytes by which two starts differ."""
    if correction.term == "kv_cache_tokens":
        return abs(correction.difference) >= _FEWEST_TOKENS * correction.planned
    return abs(correction.difference) >= max(_FEWEST_BYTES, _LEAST_OF_DEVICE * device_bytes)


def _note(run: str, corrections: Sequence[Correction]) -> str:
    moved = ", ".join(f"{_name(one.term)} {_moved(one)}" for one in corrections)
    return f"corrected by what run {run} measured: {moved} (--no-learn turns this off)"


def _name(term: CalibratedTerm) -> str:
    return "KV cache tokens" if term == "kv_cache_tokens" else COLUMNS[term]


def _moved(correction: Correction) -> str:
    if correction.term == "kv_cache_tokens":
        return f"{100 * (correction.measured / correction.planned - 1):+.1f} %"
    sign = "+" if correction.difference > 0 else "−"
    return f"{sign}{format_bytes(abs(correction.difference))}"
