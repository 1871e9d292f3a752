"""Formulas and bands of a plan's terms say the numbers that they come to, also of a base that was left in fp32."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.planner.plan import Term
from qserve.planner.training import TrainingRequest, plan_training
from qserve.planner.training.training_request import KbitFp32, Method

SpecOf = Callable[[str], ModelSpec]
METHODS: tuple[Method, ...] = ("qlora", "dpo", "grpo", "ppo")
LEFT: tuple[KbitFp32, ...] = ("none", "norms", "all")
LENGTHS = (896, 1792, 2048, 8192)
"""With 1792 tokens and 3584 wide the cast lm_head is 4 B a token and vocabulary entry: 12 + 4 = 16, RL's width."""


def _terms(spec: ModelSpec, method: Method, left: KbitFp32, length: int, **more: bool) -> dict[str, Term]:
    request = TrainingRequest(method, max_length=length, load_in_4bit=True, precision="amp", kbit_fp32=left, **more)  # type: ignore[arg-type]
    card = plan_training(spec, parse_gpu("b300"), request).cards[0]
    return {term.name: term for term in (*card.terms, *card.other_terms)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_formula_of_the_logits_comes_to_them(spec_of: SpecOf, method: Method, left: KbitFp32, length: int) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    logits = _terms(spec, method, left, length)["logits"]
    made = re.match(r"(\d+) tokens × (\d+) vocabulary × (\d+) B(?: \+ (\d+) · vocabulary · hidden)?", logits.formula)
    assert made is not None, logits.formula
    cast = int(made[4] or 0) * spec.vocab_size * spec.hidden_size
    assert math.prod(int(made[part]) for part in (1, 2, 3)) + cast == logits.num_bytes
    assert bool(cast) is (left == "all")


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("length", LENGTHS)
def test_only_rl_may_hold_its_logits_in_16_bit(spec_of: SpecOf, left: KbitFp32, length: int) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    entries = length * spec.vocab_size
    for method in METHODS:
        logits = _terms(spec, method, left, length)["logits"]
        spread = 0 if method == "qlora" else (16 - 6) * entries * (2 if method == "dpo" else 1)
        assert logits.num_bytes - logits.low_bytes == spread and logits.high_bytes == logits.num_bytes
        fused = _terms(spec, method, left, length, fused_loss=True, gradient_checkpointing=False)["logits"]
        assert fused.low_bytes == fused.num_bytes


@pytest.mark.parametrize(
    ("left", "held", "width"),
    [
        ("none", "embeddings and norms in 16 bit", 2),
        ("norms", "embeddings in 16 bit, norms in fp32", 4),
        ("all", "embeddings and norms in fp32", 4),
    ],
)
def test_what_is_in_fp32_is_said(spec_of: SpecOf, left: KbitFp32, held: str, width: int) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    terms = _terms(spec, "qlora", left, 2048)
    assert held in terms["weights (policy)"].formula
    kept = terms["activations"]
    assert f"× {width} · hidden 3584" in kept.formula
    assert kept.num_bytes == 2048 * 28 * width * 3584


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("amp", 2), ("mixed", 2)])
def test_checkpoints_are_as_wide_as_the_precision(spec_of: SpecOf, precision: str, width: int) -> None:
    request = TrainingRequest("sft", precision=precision)
    card = plan_training(spec_of("Qwen/Qwen2-7B"), parse_gpu("b300"), request).cards[0]
    kept = next(term for term in (*card.terms, *card.other_terms) if term.name == "activations")
    assert f"× {width} · hidden 3584" in kept.formula and kept.num_bytes == 2048 * 28 * width * 3584


@pytest.mark.parametrize("model", ["Qwen/Qwen2-7B", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("left", ["norms", "all"])
def test_norms_in_fp32_widen_what_is_kept_of_every_layer(spec_of: SpecOf, model: str, left: KbitFp32) -> None:
    """Without gradient checkpointing they once added nothing."""
    spec = spec_of(model)
    plain = _terms(spec, "qlora", "none", 2048, gradient_checkpointing=False)["activations"]
    wide = _terms(spec, "qlora", left, 2048, gradient_checkpointing=False)["activations"]
    moe = spec.moe
    width = spec.intermediate_size if moe is None else moe.num_experts_per_tok * moe.moe_intermediate_size
    assert wide.num_bytes - plain.num_bytes == 2048 * spec.num_hidden_layers * 6 * width
    assert "6 · intermediate in fp32" in wide.formula and "in fp32" not in plain.formula
