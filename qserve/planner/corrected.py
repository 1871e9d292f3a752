"""The accounts with what was learned put in: the same arithmetic, its terms moved to where they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from qserve.planner.engines.transformers.estimate import TransformersAccount
from qserve.planner.engines.vllm.constants import Constant
from qserve.planner.engines.vllm.estimate import VllmAccount
from qserve.planner.learned import Correction, LearnedTerm, corrected_tokens, corrections_for, shape_of, step_of
from qserve.planner.plan import Plan
from qserve.planner.setup import Setup
from qserve.units import format_bytes

__all__ = ["CorrectedTransformersAccount", "CorrectedVllmAccount", "corrected_weights", "with_corrections"]

_Corrections = Mapping[LearnedTerm, Correction]


class CorrectedVllmAccount(VllmAccount):
    """`stage_weights` come corrected already (`corrected_weights`)."""

    @cached_property
    def corrections(self) -> _Corrections:
        return corrections_for(self.setup, self.max_num_seqs, self.max_num_batched_tokens)

    @cached_property
    def activations_bytes(self) -> int:
        return _moved(super().activations_bytes, self.corrections.get("activations"))

    @cached_property
    def cuda_graphs_bytes(self) -> int:
        return _moved(super().cuda_graphs_bytes, self.corrections.get("cuda_graphs"))

    @cached_property
    def non_torch(self) -> Constant:
        return _moved_constant(super().non_torch, self.corrections.get("runtime"))


class CorrectedTransformersAccount(TransformersAccount):
    """Activations of every device alike: devices of one plan do the same step."""

    @cached_property
    def corrections(self) -> _Corrections:
        return corrections_for(self.setup, self.max_num_seqs, self.max_num_batched_tokens)

    @cached_property
    def weights_bytes(self) -> int:
        correction = self.corrections.get("weights")
        return super().weights_bytes + (correction.difference * len(self.setup.devices) if correction else 0)

    def activations_bytes(self, prompt_len: int, max_model_len: int) -> tuple[int, ...]:
        correction = self.corrections.get("activations")
        return tuple(_moved(peak, correction) for peak in super().activations_bytes(prompt_len, max_model_len))

    @property
    def runtime(self) -> Constant:
        return _moved_constant(super().runtime, self.corrections.get("runtime"))


def corrected_weights(setup: Setup, stage_weights: tuple[int, ...]) -> tuple[int, ...]:
    """A vLLM rank's weights of every stage."""
    correction = corrections_for(setup, 0, 0).get("weights")
    return tuple(_moved(weights, correction) for weights in stage_weights)


def with_corrections(setup: Setup, plan: Plan) -> Plan:
    """The plan with its shape and step, what was corrected in it, and a note for each of that."""
    workload = plan.workload
    steps = workload.max_num_seqs, workload.max_num_batched_tokens
    made = corrections_for(setup, *steps)
    tokens = made.get("kv_cache_tokens")
    if tokens is not None and plan.kv_cache_tokens:
        share = tokens.measured / tokens.planned
        plan = replace(
            plan,
            kv_cache_tokens=corrected_tokens(plan, tokens),
            max_concurrency=round(plan.max_concurrency * share, 2),
        )
    notes = tuple(_note(one) for one in made.values() if one.difference)
    return replace(
        plan, shape=shape_of(setup), step=step_of(setup, *steps), on_cpu=setup.on_cpu, corrections=tuple(made.values()),
        notes=(*plan.notes, *notes),
    )  # fmt: skip


def _moved(num_bytes: int, correction: Correction | None) -> int:
    return num_bytes if correction is None else max(0, num_bytes + correction.difference)


def _moved_constant(constant: Constant, correction: Correction | None) -> Constant:
    """Measured: nothing is left of the range."""
    if correction is None:
        return constant
    num_bytes = _moved(constant.num_bytes, correction)
    return Constant(num_bytes, num_bytes, num_bytes, f"measured by run {correction.run}")


def _note(correction: Correction) -> str:
    name = correction.term.replace("_", " ")
    if correction.term == "kv_cache_tokens":
        moved = f"{100 * (correction.measured / correction.planned - 1):+.2f} %"
    else:
        sign = "+" if correction.difference > 0 else "−"
        moved = f"{sign}{format_bytes(abs(correction.difference))}"
    return f"learned from run {correction.run}: {name} {moved} (--no-learn plans without)"
