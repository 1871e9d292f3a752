"""Bytes of weights, gradients and optimizer, worked out by hand, and how ZeRO divides them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qserve.core.model_spec import ModelSpec
from qserve.planner.training import TrainingRequest
from qserve.planner.training.models import cast_of
from qserve.planner.training.saved_activations import checkpoint_bytes, layer_bytes_per_token, logits_bytes
from qserve.planner.training.states import States, states_of
from qserve.planner.training.training_constants import ZERO_BUCKET_ELEMENTS

SpecOf = Callable[[str], ModelSpec]
P = 7_615_616_512  # Qwen2-7B


def _states(spec: ModelSpec, ranks: int, **fields: object) -> States:
    request = TrainingRequest("sft", **fields)  # type: ignore[arg-type]
    return states_of(cast_of(spec, request)[0], request, ranks)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [(0, 2 * P, 2 * P, 12 * P), (1, 2 * P, 2 * P, 3 * P), (2, 2 * P, P // 2, 3 * P), (3, P // 2, P // 2, 3 * P)],
)
def test_zero_divides_by_stage(spec_of: SpecOf, stage: int, weights: int, gradients: int, optimizer: int) -> None:
    states = _states(spec_of("Qwen/Qwen2-7B"), 4, zero_stage=stage)
    assert (states.weights_bytes, states.gradients_bytes, states.optimizer_bytes) == (weights, gradients, optimizer)
    assert (states.gathered_bytes > 0) == (stage == 3)
    assert states.buckets_bytes == (10**9 if stage else 2 * P)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("adamw", 8), ("adamw-fused", 8), ("lion", 4), ("sgd", 0), ("adafactor", 0.005), ("adamw-8bit", 2.46)],
)
def test_optimizer_states_beside_fp32_weights(spec_of: SpecOf, optimizer: str, bytes_per_parameter: float) -> None:
    states = _states(spec_of("Qwen/Qwen2-7B"), 1, precision="amp", optimizer=optimizer)
    assert states.optimizer_bytes / P == pytest.approx(bytes_per_parameter, rel=0.01, abs=0.005)


def test_offloaded_states_lie_on_the_host(spec_of: SpecOf) -> None:
    states = _states(spec_of("Qwen/Qwen2-7B"), 4, zero_stage=3, offload_optimizer="cpu", offload_param="cpu")
    assert states.weights_bytes == states.gradients_bytes == states.optimizer_bytes == 0
    assert states.host_bytes == (2 + 12 + 4) * P  # weights, master and states, fp32 gradients


def test_adapters_of_rank_8_on_all_projections(spec_of: SpecOf) -> None:
    """r · (in + out) of q, k, v, o, gate, up and down, 28 layers: PEFT prints the same for Qwen2-7B."""
    request = TrainingRequest("lora")
    model = cast_of(spec_of("Qwen/Qwen2-7B"), request)[0]
    per_layer = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert model.trainable == 8 * 28 * per_layer == 20_185_088
    attention = cast_of(spec_of("Qwen/Qwen2-7B"), TrainingRequest("lora", lora_targets="attention"))[0]
    assert attention.trainable == 8 * 28 * (2 * (3584 + 3584) + 2 * (3584 + 512))


def test_a_4_bit_base_keeps_embeddings_in_16_bit(spec_of: SpecOf) -> None:
    request = TrainingRequest("qlora")
    model = cast_of(spec_of("Qwen/Qwen2-7B"), request)[0]
    embeddings = 2 * 152064 * 3584
    expected = 2 * embeddings + (0.5 + 1 / 64 + 4 / (64 * 256)) * (P - embeddings)
    assert model.base_bytes(2) == pytest.approx(expected, rel=0.001)


def test_only_a_language_model_has_logits(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    sizes = {}
    for method, fields in {"sft": {}, "reward": {}, "grpo": {"completion_length": 256, "zero_stage": 2}}.items():
        request = TrainingRequest(method, max_length=1024, **fields)  # type: ignore[arg-type]
        sizes[method] = logits_bytes(cast_of(spec, request)[0], request)
    assert sizes == {"sft": 1024 * 152064 * 12, "reward": 0, "grpo": 256 * 152064 * 6}


def test_eager_attention_is_quadratic_and_sdpa_is_not(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2-7B")

    def per_token(attention: str, length: int) -> float:
        request = TrainingRequest("sft", attention=attention, max_length=length)  # type: ignore[arg-type]
        return layer_bytes_per_token(cast_of(spec, request)[0], request)

    assert per_token("sdpa", 1024) == per_token("sdpa", 8192) == 16 * 3584 + 8 * 3584 + 8 * 18944
    assert per_token("eager", 8192) - per_token("eager", 1024) == 8 * 28 * (8192 - 1024)


@pytest.mark.parametrize(
    ("method", "rank", "beta", "roles"),
    [
        ("sft", 0, 0.04, ["policy"]),
        ("grpo", 0, 0.04, ["policy", "reference"]),
        ("grpo", 0, 0.0, ["policy"]),
        ("grpo", 8, 0.04, ["policy"]),  # the adapters off are the reference
        ("ppo", 0, 0.04, ["policy", "critic", "reference", "reward"]),
        ("ppo", 8, 0.04, ["policy", "critic", "reward"]),
        ("reward", 0, 0.04, ["reward"]),
    ],
)
def test_who_is_in_memory(spec_of: SpecOf, method: str, rank: int, beta: float, roles: list[str]) -> None:
    request = TrainingRequest(method, lora_rank=rank, beta=beta)  # type: ignore[arg-type]
    assert [model.role for model in cast_of(spec_of("Qwen/Qwen2-7B"), request)] == roles


@pytest.mark.parametrize(
    ("stage", "optimizer", "each"),
    [(3, "adamw", 8), (3, "adamw-fused", 6), (2, "adamw", 6), (2, "adamw-fused", 6), (1, "adamw", 6)],
)
def test_deepspeed_steps_with_the_optimizer_that_it_is_given(
    spec_of: SpecOf, stage: int, optimizer: str, each: int
) -> None:
    """Stage 3 keeps the 16-bit gradients while torch's AdamW has its square roots, and takes a sub-group at a time."""
    states = _states(spec_of("Qwen/Qwen2-7B"), 8, zero_stage=stage, optimizer=optimizer)
    assert states.step_bytes == pytest.approx(each * P / 8, rel=1e-6)
    two = _states(spec_of("Qwen/Qwen2-7B"), 2, zero_stage=3, optimizer=optimizer)
    assert two.step_bytes == (8 if optimizer == "adamw" else 6) * 10**9


@pytest.mark.parametrize(("left", "embeddings", "stream"), [("none", 2, 2), ("norms", 2, 4), ("all", 4, 4)])
def test_what_a_prepared_base_has_in_fp32(spec_of: SpecOf, left: str, embeddings: int, stream: int) -> None:
    request = TrainingRequest("qlora", kbit_fp32=left)  # type: ignore[arg-type]
    model = cast_of(spec_of("Qwen/Qwen2-7B"), request)[0]
    plain = model.base_bytes(2)
    more = model.base_bytes(request.frozen_bytes) - plain
    assert more == pytest.approx((embeddings - 2) * 2 * 152064 * 3584, rel=0.001)
    assert checkpoint_bytes(model, request) == stream * 3584 * 28 * request.tokens
    copies = logits_bytes(model, request) - logits_bytes(model, TrainingRequest("qlora"))
    assert copies == (2 * 152064 * 3584 if left == "all" else 0)


def test_a_fused_loss_holds_a_chunk_of_the_logits(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    request = TrainingRequest("lora", max_length=2048, fused_loss=True)
    # 152064 / 3584 = 43 chunks of 64 tokens, and the gradients of 2048 hidden states.
    assert logits_bytes(cast_of(spec, request)[0], request) == 4 * 64 * 152064 + 2 * 2048 * 3584
    full = TrainingRequest("sft", max_length=2048, fused_loss=True)
    lm_head = 2 * 152064 * 3584
    assert logits_bytes(cast_of(spec, full)[0], full) == 4 * 64 * 152064 + 2 * 2048 * 3584 + lm_head


def test_zero_3_shards_4_bit_weights(spec_of: SpecOf) -> None:
    request = TrainingRequest("qlora", zero_stage=3)
    model = cast_of(spec_of("Qwen/Qwen2-7B"), request)[0]
    alone, shared = (states_of(model, request, ranks) for ranks in (1, 4))
    assert shared.weights_bytes == -(-alone.weights_bytes // 4)
    layer = (model.base_bytes(2) - 2 * 2 * 152064 * 3584) / 28
    assert shared.gathered_bytes == pytest.approx(2 * layer + 2 * 152064 * 3584, rel=0.001)


def test_an_int8_base_has_a_byte_a_weight_and_a_scale_a_row(spec_of: SpecOf) -> None:
    model = cast_of(spec_of("Qwen/Qwen2-7B"), TrainingRequest("lora", quant="int8"))[0]
    embeddings = 2 * 152064 * 3584
    rows = 28 * (2 * 3584 + 2 * 512 + 2 * 18944 + 3584)
    small = P - embeddings - model.spec.num_hidden_layers * (2 * 3584**2 + 2 * 512 * 3584 + 3 * 3584 * 18944)
    assert model.base_bytes(2) == pytest.approx(P - embeddings - small + 4 * rows + 2 * (embeddings + small), rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "bytes_each"),
    [
        ({"precision": "fp32"}, (4, 4, 8)),
        ({"precision": "fp32", "quant": "bf16"}, (4, 4, 8)),  # PEFT keeps adapters in fp32
        ({"precision": "amp", "quant": "int8"}, (2, 2, 4)),  # TRL casts them over a base of bitsandbytes
        ({"precision": "fp32", "quant": "4bit"}, (2, 2, 4)),
        ({"precision": "mixed", "quant": "4bit"}, (2, 2, 12)),  # DeepSpeed's master copy
    ],
)
def test_adapters_are_as_wide_as_what_trains_them_makes_them(
    spec_of: SpecOf, fields: dict[str, str], bytes_each: tuple[int, int, int]
) -> None:
    request = TrainingRequest("lora", **fields)  # type: ignore[arg-type]
    model = cast_of(spec_of("Qwen/Qwen2-7B"), request)[0]
    states = states_of(model, request, 1)
    found = (
        states.weights_bytes - model.base_bytes(request.frozen_bytes),
        states.gradients_bytes,
        states.optimizer_bytes,
    )
    assert found == tuple(model.trainable * size for size in bytes_each)


def test_a_16_bit_base_is_half_of_one_in_fp32(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2-7B")
    whole, half = (TrainingRequest("lora", precision="fp32", quant=quant) for quant in (None, "fp16"))
    assert (whole.frozen_bytes, half.frozen_bytes) == (4, 2)
    assert (whole.activation_bytes, half.activation_bytes) == (4, 2)
    model = cast_of(spec, half)[0]
    assert 2 * model.base_bytes(half.frozen_bytes) == model.base_bytes(whole.frozen_bytes)


def test_fsdp_divides_all_that_zero_3_does_without_its_buffers(spec_of: SpecOf) -> None:
    fields: dict[str, Any] = {"method": "sft", "precision": "fp32"}
    zero, fsdp = TrainingRequest(zero_stage=3, **fields), TrainingRequest(fsdp=True, **fields)
    model = cast_of(spec_of("Qwen/Qwen2-7B"), fsdp)[0]
    one, other = states_of(model, zero, 4), states_of(model, fsdp, 4)
    assert (one.weights_bytes, one.gradients_bytes) == (other.weights_bytes, other.gradients_bytes)
    assert one.weights_bytes == -(-4 * model.parameters // 4)
    assert other.optimizer_bytes == 8 * model.parameters // 4
    assert (one.buckets_bytes, other.buckets_bytes) == (4 * ZERO_BUCKET_ELEMENTS, 4 * 152_064 * 3584)
    assert other.gathered_high_bytes == other.gathered_bytes == one.gathered_bytes


@pytest.mark.parametrize(("stage", "each"), [(0, 8), (1, 12), (2, 12), (3, 8)])
def test_zero_1_and_2_copy_their_share_of_fp32_weights(spec_of: SpecOf, stage: int, each: int) -> None:
    request = TrainingRequest("sft", precision="fp32", zero_stage=stage)
    model = cast_of(spec_of("Qwen/Qwen2-7B"), request)[0]
    assert states_of(model, request, 1).optimizer_bytes == each * model.parameters
