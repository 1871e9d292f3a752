"""A step whose every sequence is sampled has its room outside of vLLM's share of the card, or fewer sequences run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.planner import make_plan, plan_request
from qserve.planner.plan import Plan
from qserve.planner.term import Term
from qserve.units import GIB
from tests.unit.engines.vllm.builders import checkpoint, hardware, plan_of

VOCABULARY = 151_936
NAME = "sampled step"


def step_of(plan: Plan, device: int = -1) -> Term | None:
    return next((term for term in plan.devices[device].terms if term.name == NAME), None)


def activations_of(plan: Plan) -> int:
    return next(term for term in plan.devices[0].terms if term.name == "activations").num_bytes


def shared(others_bytes: int, **fixed: object) -> Plan:
    """Qwen3-0.6B on an RTX 4090 of which others hold so much."""
    machine = hardware("rtx-4090")
    devices = tuple(replace(device, used_by_others_bytes=others_bytes) for device in machine.devices)
    return make_plan(
        checkpoint("Qwen/Qwen3-0.6B"), replace(machine, devices=devices), plan_request(engine="vllm", **fixed)
    )


def test_it_is_the_fp32_copy_beyond_what_was_profiled_and_the_rows_of_top_k() -> None:
    fixed = {"quant": "bf16", "max_num_seqs": 1024, "max_num_batched_tokens": 8192, "warm_compile_cache": True}
    plan = plan_of("Qwen/Qwen3-8B", "h100-sxm", **fixed)
    step = step_of(plan)
    base = 19 * 1024**2 + 2 * 8192 * 4096
    expected = 6 * 1024 * VOCABULARY + base - activations_of(plan) + 4 * 132 * VOCABULARY
    assert step is not None and step.num_bytes == expected
    assert not step.is_charged, "vLLM takes nothing of it from its cache"
    assert (step.low_bytes, step.high_bytes) == (0, expected)


def test_a_first_start_has_its_room_where_the_compiler_copied_the_embedding() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "h100-sxm", quant="bf16", max_num_seqs=1024)
    step = step_of(plan)
    assert step is not None and step.num_bytes == 4 * 132 * VOCABULARY


def test_flashinfer_masks_into_a_copy_of_its_own() -> None:
    fixed = plan_request(engine="vllm", quant="bf16", max_num_seqs=1024, max_num_batched_tokens=8192)
    machine, model = hardware("h100-sxm"), checkpoint("Qwen/Qwen3-8B")
    compiled = replace(machine, packages=frozenset({"flashinfer-python", "flashinfer-jit-cache"}))
    by_triton, by_flashinfer = step_of(make_plan(model, machine, fixed)), step_of(make_plan(model, compiled, fixed))
    assert by_triton is not None and by_flashinfer is not None
    assert by_flashinfer.num_bytes - by_triton.num_bytes > 0.7 * GIB
    assert by_flashinfer.formula.startswith("14·1024·")


def test_from_0_33_on_the_profile_run_samples_itself() -> None:
    fixed = {"quant": "bf16", "max_num_seqs": 1024, "warm_compile_cache": True}
    plan = plan_of("Qwen/Qwen3-8B", "h100-sxm", engine_version="0.33.0", **fixed)
    assert step_of(plan) is None
    before = plan_of("Qwen/Qwen3-8B", "h100-sxm", engine_version="0.32.0", **fixed)
    assert activations_of(plan) > activations_of(before)
    assert not any("newer than this planner" in note for note in plan.notes)


@pytest.mark.parametrize(("release", "each"), [("0.25.1", None), ("0.26.0", "45"), ("0.28.0", "45"), ("0.29.0", "6")])
def test_the_first_runner_counts_penalties_in_64_bit(release: str, each: str | None) -> None:
    """Of a mixture of experts, which the second runner serves from 0.29 on; older releases are as they were."""
    plan = plan_of("Qwen/Qwen3-30B-A3B", "h100-sxm", quant="bf16", engine_version=release)
    step = step_of(plan)
    assert (step.formula.partition("·")[0] if step else None) == each


def test_only_the_last_stage_of_a_pipeline_samples() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "rtx-3090:2", quant="bf16", pipeline_parallel_size=2)
    first, last = step_of(plan, 0), step_of(plan, 1)
    assert first is None
    assert last is not None and last.num_bytes > 0
    assert not any("samples" in note for note in plan.notes)


def test_fewer_sequences_run_where_others_took_the_room_and_the_plan_says_so() -> None:
    free = shared(0, quant="bf16", gpu_memory_utilization=0.9, max_num_batched_tokens=2048)
    room = free.devices[0].free_bytes + step_of(free).num_bytes
    plan = shared(room - 10_000_000, quant="bf16", gpu_memory_utilization=0.9, max_num_batched_tokens=2048)
    assert plan.fits and plan.devices[0].free_bytes >= 0
    assert (free.workload.max_num_seqs, plan.workload.max_num_seqs) == (256, 16)
    (note,) = (note for note in plan.notes if "samples them all" in note)
    assert note.startswith("--max-num-seqs is 16 and not 32,")
    assert not any("samples them all" in note for note in free.notes)


def test_a_model_that_fits_only_without_a_safety_margin_keeps_the_room() -> None:
    plan = plan_of("Qwen/Qwen3-32B", "rtx-4090", quant="nvfp4")
    step = step_of(plan)
    assert any("No room for a safety margin" in note for note in plan.notes)
    assert step is not None and step.num_bytes > 0


def test_sequences_that_were_asked_for_stay_with_a_warning() -> None:
    """Such a start succeeds, and ends at the first full batch that is sampled."""
    fixed = {"quant": "bf16", "max_num_seqs": 1024, "max_num_batched_tokens": 2048}
    roomy = plan_of("Qwen/Qwen3-0.6B", "rtx-4090", gpu_memory_utilization=0.95, **fixed)
    assert roomy.fits and not any("No room for a step" in note for note in roomy.notes)
    tight = plan_of("Qwen/Qwen3-0.6B", "rtx-4090", gpu_memory_utilization=0.97, **fixed)
    assert tight.fits and tight.workload.max_num_seqs == 1024
    (note,) = (note for note in tight.notes if "No room for a step" in note)
    assert "samples 1024 sequences at once: it takes 667.7 MiB" in note
    step = step_of(tight)
    assert step is not None and (step.num_bytes, step.high_bytes) == (0, step_of(roomy).num_bytes)
