"""Quantizing while loading: what vLLM makes of a word like fp8 on which card, its bytes, and what a CPU runs."""

from __future__ import annotations

import pytest

from qserve.core.dimensions import tensors_of
from qserve.core.packing import pack
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.engines.vllm.plan.schemes import quantization_flag
from qserve.errors import UsageError
from qserve.planner import Plan
from tests.unit.planner.test_make_plan import checkpoint_of, plan_of

# No sibling of it is known, so everything below 16 bit happens in flight.
MODEL = "Qwen/Qwen3-4B-Base"


@pytest.mark.parametrize(
    ("gpu", "fixed", "scheme"),
    [
        ("h100", {}, "fp8_per_block"),
        ("l4", {}, "fp8_per_block"),
        ("rtx-3090", {}, "fp8_per_tensor"),
        ("h100:3", {}, "fp8_per_tensor"),
        ("h100", {"engine_version": "0.29.0"}, "fp8_per_tensor"),
        ("h100", {"engine_version": "0.27.1"}, "fp8"),
    ],
)
def test_fp8_is_what_card_and_release_do_best(gpu: str, fixed: dict[str, str], scheme: str) -> None:
    plan = plan_of(MODEL, gpu, quant="fp8", **fixed)
    assert plan.fits
    assert plan.quant.in_flight
    assert plan.quant.scheme == scheme


@pytest.mark.parametrize(("gpu", "words"), [("h100", "computes in fp8"), ("rtx-3090", "saves memory, not time")])
def test_the_reason_says_what_the_card_makes_of_it(gpu: str, words: str) -> None:
    assert words in plan_of(MODEL, gpu, quant="fp8").quant.reason


@pytest.mark.parametrize("scheme", ["fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "mxfp8", "mxfp4"])
def test_vllms_own_names_are_taken_at_their_word(scheme: str) -> None:
    plan = plan_of(MODEL, "h100", quant=scheme)
    assert plan.quant.scheme == scheme
    assert quantization_flag(scheme) == scheme


def test_int8_in_flight_is_for_experts_only() -> None:
    with pytest.raises(UsageError, match="--engine transformers"):
        plan_of(MODEL, "h100", quant="int8")
    plan = plan_of("Qwen/Qwen3-30B-A3B-Base", "h100", quant="int8")
    assert plan.quant.scheme == "int8_per_channel_weight_only"
    whole = plan_of("Qwen/Qwen3-30B-A3B-Base", "h100", quant="bf16").devices[0].weights_bytes
    assert 0.5 < plan.devices[0].weights_bytes / whole < 0.56


@pytest.mark.parametrize(
    ("scheme", "group", "bytes_per_weight"),
    [("fp8_per_block", 0, 1 + 4 / 128**2), ("mxfp8", 32, 1 + 1 / 32), ("mxfp4", 32, 0.5 + 1 / 32)],
)
def test_bytes_of_a_weight(scheme: str, group: int, bytes_per_weight: float) -> None:
    quantization = CheckpointQuantization(scheme, SCHEMES[scheme].bits, group, block=0 if group else 128)
    linears = [t for t in tensors_of(checkpoint_of(MODEL).spec) if t.role == "linear" and len(t.shape) == 2]
    stored = sum(tensor.nbytes for tensor in pack(linears, quantization))
    assert stored == pytest.approx(sum(t.num_elements for t in linears) * bytes_per_weight, rel=1e-3)


def on_cpu(model: str, quant: str) -> Plan:
    return plan_of(model, None, quant=quant, engine="vllm")


def test_vllm_on_a_cpu_quantizes_to_nf4_only() -> None:
    assert on_cpu(MODEL, "4bit").quant.scheme == "bnb-nf4"
    for quant in ("fp8", "int8", "mxfp4", "fp8_per_tensor"):
        with pytest.raises(UsageError, match="on a CPU"):
            on_cpu(MODEL, quant)


def test_vllm_on_a_cpu_takes_siblings_that_it_has_kernels_for() -> None:
    assert on_cpu("Qwen/Qwen3-4B", "4bit").quant.scheme == "awq"
    with pytest.raises(UsageError, match="on a CPU"):
        on_cpu("Qwen/Qwen2.5-3B-Instruct", "gptq-int8")


def test_vllm_on_a_cpu_refuses_a_checkpoint_without_kernels() -> None:
    with pytest.raises(UsageError, match="no kernels"):
        on_cpu("Qwen/Qwen3-8B-FP8", "auto")
