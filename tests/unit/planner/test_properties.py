"""What must hold of every plan, whatever the model, the card and the request."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, PlanRequest, make_plan, plan_request
from qserve.planner.engine import changed_request
from qserve.planner.memory.kv import kv_bytes_per_token
from qserve.units import GIB, format_bytes, parse_bytes

MODELS = ("Qwen/Qwen2.5-7B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3.5-9B")
ONE_KIB = 1024
few = settings(max_examples=25, deadline=None)

models = st.sampled_from(MODELS)
card_bytes = st.integers(4 * GIB, 200 * GIB)
lengths = st.integers(16, 32768)
counts = st.integers(1, 512)


def checkpoint_of(model: str) -> Checkpoint:
    config = bundled_config(model) or {}
    return Checkpoint(model, None, config, ModelSpec.from_config(config, model))


def machine(total_bytes: int, cards: int = 1) -> Hardware:
    card = Device("card", "cuda", total_bytes, 0, 128, 0, ("fp16", "bf16", "fp8"), (8, 9))
    return Hardware((card,) * cards, 64 * GIB, 64 * GIB, 16)


def plan_of(model: str, total_bytes: int, **fixed: object) -> Plan:
    """Without suggestions: most of the time of a refused plan, with tests of their own (test_suggestions.py)."""
    request = plan_request(quant="bf16", **fixed)  # type: ignore[arg-type]
    with mock.patch("qserve.planner.make.suggestions", return_value=()):
        return make_plan(checkpoint_of(model), machine(total_bytes), request)


@few
@given(models, card_bytes, lengths, counts)
def test_parts_sum_to_the_whole(model: str, total: int, length: int, count: int) -> None:
    for device in plan_of(model, total, max_model_len=length, max_num_seqs=count).devices:
        held = device.weights_bytes + device.kv_cache_bytes + device.activations_bytes
        held += device.cuda_graphs_bytes + device.runtime_bytes + device.used_by_others_bytes
        assert held + device.free_bytes == device.total_bytes


@few
@given(models, card_bytes, lengths, st.integers(0, 64 * GIB))
def test_what_fits_still_fits_with_more_memory(model: str, total: int, length: int, more: int) -> None:
    if plan_of(model, total, max_model_len=length).fits:
        assert plan_of(model, total + more, max_model_len=length).fits


@few
@given(models, card_bytes, st.integers(16, 16384), st.integers(1, 16384))
def test_a_longer_length_never_fits_where_a_shorter_does_not(model: str, total: int, length: int, more: int) -> None:
    if plan_of(model, total, max_model_len=length + more).fits:
        assert plan_of(model, total, max_model_len=length).fits


@few
@given(models, card_bytes, counts, counts)
def test_more_sequences_leave_no_more_cache(model: str, total: int, count: int, more: int) -> None:
    fixed = {"max_model_len": 512, "max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9}
    few_seqs = plan_of(model, total, max_num_seqs=count, **fixed)
    many = plan_of(model, total, max_num_seqs=count + more, **fixed)
    assert many.placement.kv_cache_memory_bytes <= few_seqs.placement.kv_cache_memory_bytes


@few
@given(models, st.sampled_from((1, 2, 4, 8, 16, 32)))
def test_tensor_parallelism_halves_the_cache_or_replicates_it(model: str, ranks: int) -> None:
    spec = checkpoint_of(model).spec
    whole, split = kv_bytes_per_token(spec, 2), kv_bytes_per_token(spec, 2, ranks)
    assert split * min(ranks, spec.num_key_value_heads) == whole


@few
@given(models, st.sampled_from((2, 4)))
def test_ranks_share_the_weights(model: str, ranks: int) -> None:
    request = PlanRequest(quant="bf16", max_model_len=1024)
    one = make_plan(checkpoint_of(model), machine(400 * GIB), request).devices[0].weights_bytes
    shared = make_plan(
        checkpoint_of(model), machine(400 * GIB, ranks), changed_request(request, tensor_parallel_size=ranks)
    )
    assert len(shared.devices) == ranks
    assert one / ranks <= shared.devices[0].weights_bytes < 1.2 * one / ranks + GIB


@few
@given(models, card_bytes, st.sampled_from(("auto", "4bit", "fp8", "bf16")))
def test_json_is_the_whole_plan(model: str, total: int, quant: str) -> None:
    plan = make_plan(checkpoint_of(model), machine(total), PlanRequest(quant=quant))
    assert Plan.from_json(plan.to_json()) == plan


@few
@given(models, card_bytes)
def test_a_refusal_says_how_much_is_missing(model: str, total: int) -> None:
    plan = plan_of(model, total, max_model_len=4096)
    assert plan.fits == (plan.why_not is None) == (plan.short_bytes == 0)


@given(st.integers(0, 1 << 50))
def test_sizes_survive_print_and_parse(num_bytes: int) -> None:
    printed = parse_bytes(format_bytes(num_bytes))
    assert abs(printed - num_bytes) <= 1 + num_bytes // 19  # one digit behind the point: 0.05 of 1 KiB at worst
    assert parse_bytes(str(num_bytes)) == num_bytes
