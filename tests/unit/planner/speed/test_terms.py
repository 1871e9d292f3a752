"""Terms of a step, against arithmetic and against what is known of the cards."""

from __future__ import annotations

import pytest

from qserve.core.facts import load
from qserve.core.hardware import known_gpus
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner.speed.steps.times import StepTimes
from qserve.planner.speed.terms import kernels
from qserve.planner.speed.terms.card import card_of
from qserve.planner.speed.terms.engine_costs import engine_costs, era_of
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.network import rank_network


def spec_of(name: str) -> ModelSpec:
    config = bundled_config(name)
    assert config is not None
    return ModelSpec.from_config(config, name)


def steps_of(name: str, gpu: str, scheme: str = "bf16", ranks: int = 1) -> StepTimes:
    card = card_of(known_gpus()[gpu])
    network = rank_network(spec_of(name), weight_format(scheme, tuple(card.peaks), card.is_hopper), ranks)
    return StepTimes(card, network, engine_costs("vllm", "0.32.0"))


@pytest.mark.parametrize("gpu", sorted(load("gpus")["gpus"]))
def test_every_known_card_has_figures(gpu: str) -> None:
    step = steps_of("Qwen/Qwen3-8B", gpu)
    assert 0 < step.decode_s(1, 1000) < step.decode_s(64, 1000)


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3.6-27B", "Qwen/Qwen2.5-7B-Instruct"]
)
def test_a_step_is_never_faster_than_its_bytes(name: str) -> None:
    step = steps_of(name, "h100-sxm")
    network = step.network
    dense = sum(gemm.rows * gemm.columns * gemm.count for gemm in network.gemms) * 2
    assert step.decode_s(1, 1000) > dense / step.card.bandwidth


def test_the_terms_sum_to_the_step() -> None:
    step = steps_of("Qwen/Qwen3.6-27B", "l40s")
    assert step.decode_terms(4, 2000).total / 1e6 == pytest.approx(step.decode_s(4, 2000))


def test_the_share_of_two_ranks_is_half_the_weights() -> None:
    one, two = (rank_network(spec_of("Qwen/Qwen3-32B"), weight_format("bf16", ()), ranks) for ranks in (1, 2))
    assert two.linear_weights == pytest.approx(one.linear_weights / 2, rel=0.01)


def test_products_hold_the_models_weights() -> None:
    network = rank_network(spec_of("Qwen/Qwen3-32B"), weight_format("bf16", ()))
    head = network.lm_head.rows * network.lm_head.columns
    assert network.linear_weights + 2 * head == pytest.approx(32.76e9, rel=0.005)


def test_norms_and_gates_of_several_operations_move_what_was_counted() -> None:
    """Qwen3-0.6B: 28 layers of two norms of 1024, heads of 24 x 128 that are normed, and a gate of 3072."""
    config = bundled_config("Qwen/Qwen3-0.6B")
    assert config is not None
    network = rank_network(ModelSpec.from_config(config), weight_format("bf16", ()))
    assert network.unfused_bytes == 28 * (2 * 60 * 1024 + 36 * 24 * 128 + 10 * 3072)


def test_experts_read_are_those_chosen_by_one_token_and_all_by_many() -> None:
    assert kernels.experts_read(128, 8, 1, 1.0) == pytest.approx(8)
    assert kernels.experts_read(128, 8, 2000, 1.0) == pytest.approx(128)
    assert kernels.experts_read(128, 8, 16, 0.8) < kernels.experts_read(128, 8, 16, 1.0)


def test_cards_that_share_over_pcie_pay_for_it() -> None:
    nvlink, pcie = (card_of(known_gpus()[gpu]) for gpu in ("a100-80gb", "rtx-3090"))
    assert kernels.reduce_us(pcie, 2, 1 << 24) > 5 * kernels.reduce_us(nvlink, 2, 1 << 24)
    assert kernels.reduce_us(pcie, 1, 1 << 24) == 0


def test_a_card_without_fp8_keeps_its_bytes_and_computes_in_16_bit() -> None:
    ampere, ada = weight_format("fp8", ("bf16", "int8")), weight_format("fp8", ("bf16", "fp8"))
    assert (ampere.math, ada.math) == ("bf16", "fp8")
    assert ampere.bytes_per_weight == pytest.approx(ada.bytes_per_weight, rel=0.05)


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200"])
def test_chunks_of_a_prompt_follow_each_other_however_few_heads_a_rank_has(gpu: str) -> None:
    """AIConfigurator's table of vLLM on a B200: 327 us for 8192 tokens of 2 heads, 331 of 64."""
    card = card_of(known_gpus()[gpu])
    few, many = (kernels.state_prefill_us(card, heads, 8192, 8192) for heads in (2, 8))
    assert many < 1.5 * few
    assert kernels.state_prefill_us(card, 8, 8192, 2048) < many, "four prompts at once"


def test_a_short_prompts_step_is_replayed_and_a_long_ones_launched() -> None:
    """vLLM captures pieces of its model up to 512 tokens: launches of a 0.6B bound the steps above that alone."""
    steps = steps_of("Qwen/Qwen3-0.6B", "h100-sxm")
    short, long = (steps.mixed_s(0, 0, [(tokens, 0)]) for tokens in (512, 513))
    assert steps.costs.graph_tokens == 512
    assert long > 2 * short


@pytest.mark.parametrize(("gpu", "share"), [("rtx-5090", 0.6963), ("rtx-5070-ti", 0.8), ("rtx-5060-ti", 0.8)])
def test_products_of_fp4_carry_as_many_bytes_a_second_on_a_slower_card_up_to_a_bound(gpu: str, share: float) -> None:
    floor, reached = card_of(known_gpus()[gpu]).kernel("gemm_nvfp4")[:2]
    assert reached == pytest.approx(share)
    assert floor < load("speed_kernels")["rtx-pro-6000"]["gemm_nvfp4"][0] / 2, "the table's is of launches from Python"


def test_a_geforce_card_reaches_more_of_its_halved_peak() -> None:
    """An RTX 4090 is not held to the share of an L40S's 362 TFLOP/s, nor an RTX 5090's FP4 to twice its FP8."""
    ada, blackwell = (card_of(known_gpus()[gpu]) for gpu in ("rtx-4090", "rtx-5090"))
    lent = load("speed_kernels")["l40s"]
    assert (ada.kernel("gemm_bf16")[2], lent["gemm_bf16"][2]) == (pytest.approx(0.9), pytest.approx(0.6278))
    assert ada.kernel("prefill_128")[1] * ada.peak("bf16") < lent["prefill_128"][1] * 362e12
    assert blackwell.peak("fp4") == pytest.approx(1676e12)
    assert card_of(known_gpus()["rtx-pro-6000"]).peak("fp4") == pytest.approx(4 * 467.8e12)


def test_releases_find_their_era() -> None:
    assert [era_of("vllm", release) for release in ("0.6.3", "0.12.0", "0.32.0", "")] == [
        "vllm-v0",
        "vllm-v1",
        "vllm-async",
        "vllm-async",
    ]
    assert era_of("TensorRT-LLM", "1.0.0rc3") == "trtllm"
