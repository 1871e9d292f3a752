"""What earlier starts measured, and what of it may correct the next plan. Pure arithmetic; nobody remembers here.

A residual is a term as it was planned, before any correction, and as it was measured. It holds for the same engine,
release and device, and beyond that as far as physics does:

    weights, KV tokens         the same model, quantization and dtypes, on as many ranks
    activations, CUDA graphs   that, and the same step: sequences and tokens at once
    runtime                    on a card any model (context and libraries belong to the engine), on a CPU the same one

What the user fixed is never moved: a KV size in bytes stays those bytes, only how many tokens they hold is corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from qserve.planner.plan import Plan
    from qserve.planner.setup import Setup

__all__ = ["Correction", "LearnedTerm", "Residual", "corrections_for", "shape_of", "step_of"]

LearnedTerm = Literal["weights", "activations", "cuda_graphs", "runtime", "kv_cache_tokens"]

# A measurement further off than this is of something else (a device shared with others, a bug): it corrects nothing.
_MOST_OF_DEVICE = 0.25
_MOST_TOKENS = 2.0


@dataclass(frozen=True)
class Residual:
    """One term of one run. `planned` and `measured` are bytes of one device, or tokens of the whole KV cache.

    `shape` and `step` are a plan's own; `run` is the id of the run that measured it, at `unix_s`.
    """

    engine: str
    engine_version: str
    device: str
    on_cpu: bool
    shape: str
    step: str
    term: LearnedTerm
    planned: int
    measured: int
    run: str
    unix_s: float = 0.0


@dataclass(frozen=True)
class Correction:
    """What was done to a term of a plan: from `planned` to `measured`, because of `run`."""

    term: LearnedTerm
    planned: int
    measured: int
    run: str

    @property
    def difference(self) -> int:
        return self.measured - self.planned


def shape_of(setup: Setup) -> str:
    """The model as memory sees it, and over how many ranks it lies."""
    how = "in flight" if setup.quant.in_flight else "stored"
    spread = f"tp {setup.tensor_parallel_size} pp {setup.pipeline_parallel_size}"
    adapters = setup.request.adapters
    if adapters is not None:
        spread = f"{spread}, {adapters.max_loras} adapters of rank {adapters.max_rank}"
    if setup.engine == "transformers":
        spread = f"{len(setup.devices)} devices"
    return (
        f"{setup.spec.architecture} {setup.checkpoint.parameters} parameters, {setup.quant.scheme} {how}, "
        f"{setup.dtype}, kv {setup.request.kv_cache_dtype}, {spread}"
    )


def step_of(setup: Setup, max_num_seqs: int, max_num_batched_tokens: int) -> str:
    """What a step computes at once, and what decides beside that how much it needs."""
    request = setup.request
    flags = (
        ("eager", request.enforce_eager),
        ("prompt logprobs", request.prompt_logprobs),
        ("language model only", request.language_model_only),
        (f"{request.num_speculative_tokens} drafted", request.num_speculative_tokens),
    )
    said = [name for name, is_set in flags if is_set]
    return ", ".join([f"{max_num_seqs} sequences", f"{max_num_batched_tokens} tokens", *said])


def corrections_for(setup: Setup, max_num_seqs: int, max_num_batched_tokens: int) -> Mapping[LearnedTerm, Correction]:
    """The newest measurement of each term that holds for this setup and step."""
    learned = setup.request.learned
    if not learned:
        return {}
    shape, step = shape_of(setup), step_of(setup, max_num_seqs, max_num_batched_tokens)
    holding = (one for one in learned if _holds(one, setup, shape, step))
    return {
        one.term: Correction(one.term, one.planned, one.measured, one.run)
        for one in sorted(holding, key=lambda one: one.unix_s)
    }


def corrected_tokens(plan: Plan, correction: Correction) -> int:
    """KV tokens of a plan, as many more or less in proportion as the engine made of its bytes."""
    return plan.kv_cache_tokens * correction.measured // correction.planned


def _holds(one: Residual, setup: Setup, shape: str, step: str) -> bool:
    device = setup.devices[0]
    if (one.engine, one.engine_version, one.device) != (setup.engine, setup.engine_version, device.name):
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
