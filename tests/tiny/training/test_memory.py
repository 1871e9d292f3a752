"""Activations and logits of a training plan against torch's own account: real modules of transformers, fake tensors.

MemTracker follows every storage of a forward and backward pass; FakeTensorMode lets it do so without the memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import TrainingRequest, plan_training
from qserve.planner.training.cpu_activations import layer_bytes
from qserve.planner.training.models import cast_of
from qserve.planner.training.saved_activations import (
    checkpoint_bytes,
    layer_bytes_per_token,
    logits_bytes,
    recompute_bytes,
)
from qserve.planner.training.training_constants import LOGIT_BYTES

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}


def _peak(family: str, head: str, length: int, *, checkpointing: bool, layers: int, vocab: int) -> int:
    """Peak bytes of a forward and a backward pass beyond weights and gradients."""
    classes = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}
    extra = {"head_dim": 64} if family == "qwen3" else {}
    config = classes[family](num_hidden_layers=layers, vocab_size=vocab, **SHAPE, **extra)
    config.num_labels = 1
    auto = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        warnings.simplefilter("ignore")
        model = auto.from_config(config, dtype=torch.bfloat16).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for parameter in model.parameters():  # as in every step but the first
            parameter.grad = torch.zeros_like(parameter)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            _step(model, head, torch.zeros(1, length, dtype=torch.long))
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
        resident = 2 * sum(parameter.numel() * 2 for parameter in model.parameters())
    return int(next(value for name, value in peak.items() if str(name).endswith("Total"))) - resident


def _step(model: Any, head: str, ids: torch.Tensor) -> None:
    out = model(input_ids=ids, use_cache=False, **({"labels": ids} if head == "lm" else {}))
    loss = out.loss if head == "lm" else out.logits.mean()
    del out
    loss.backward()


def _planned(family: str, head: str, length: int, layers: int, vocab: int) -> tuple[Any, TrainingRequest]:
    config = {
        "architectures": ["Qwen3ForCausalLM" if family == "qwen3" else "Qwen2ForCausalLM"],
        "model_type": family,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        **SHAPE,
        "head_dim": 64,
    }
    request = TrainingRequest("sft" if head == "lm" else "reward", max_length=length)
    return cast_of(ModelSpec.from_config(config), request)[0], request


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_layer_saves_what_is_planned(family: str) -> None:
    length = 256
    few, many = (_peak(family, "lm", length, checkpointing=False, layers=n, vocab=128) for n in (1, 3))
    model, request = _planned(family, "lm", length, 3, 128)
    # The CPU kernel of SDPA keeps one more matrix of length × length, which flash attention on a GPU does not.
    assert (many - few) / 2 / length - 2 * length == pytest.approx(layer_bytes_per_token(model, request), rel=0.01)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_gradient_checkpointing_keeps_layer_inputs_and_one_layer(family: str) -> None:
    length = 1024
    few, many = (_peak(family, "score", length, checkpointing=True, layers=n, vocab=128) for n in (1, 3))
    model, request = _planned(family, "score", length, 3, 128)
    sequences = request.sequences  # a reward request counts pairs
    assert (many - few) / 2 == pytest.approx(checkpoint_bytes(model, request) / 3 / sequences, rel=0.01)
    kept = checkpoint_bytes(model, request) / sequences
    layer = recompute_bytes(model, request) / sequences + 2 * length * length
    assert many == pytest.approx(kept + layer, rel=0.05)


def _saved(config: Qwen3MoeConfig, length: int) -> int:
    """Bytes of all storages but weights that a forward pass keeps for the backward pass; real tensors."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=torch.arange(length)[None] % 64, use_cache=False).logits.float().sum()
    return sum(storage.nbytes() for storage in storages.values())


SMALL = {
    "hidden_size": 80,
    "intermediate_size": 208,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
}


def _kept_by_a_layer(request: TrainingRequest, family: str) -> float:
    """Bytes that each further layer of real modules keeps on a CPU, weights and their 16-bit casts aside."""
    return (_kept(request, family, 4) - _kept(request, family, 2)) / 2


def _kept(request: TrainingRequest, family: str, layers: int) -> int:
    config = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}[family](num_hidden_layers=layers, num_labels=1, **SMALL)
    dtype = torch.float32 if request.activation_bytes == 4 or request.precision == "amp" else torch.bfloat16
    model = AutoModelForSequenceClassification.from_config(
        config, dtype=dtype, attn_implementation=request.attention
    ).train()
    if request.tuning in ("lora", "qlora"):
        targets = "all-linear" if request.lora_targets == "all-linear" else ["q_proj", "k_proj", "v_proj", "o_proj"]
        model = get_peft_model(model, LoraConfig(r=request.rank, target_modules=targets, task_type="SEQ_CLS"))
    if request.tuning == "qlora":  # as TRL casts them; what a layer keeps of a base in 4 bit is what it keeps of others
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.bfloat16() if ".lora_" in name else parameter.data
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(parameter.shape[::-1]) for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            storages[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(1, 64, (request.sequences, request.max_length))
    mask = torch.ones_like(ids)
    if request.sequences > 1:
        mask[0, -10:] = 0
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=request.precision == "amp"):
        model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float().sum()
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("qwen3", {"precision": "fp32"}),
        ("qwen2", {"precision": "fp32"}),
        ("qwen3", {"precision": "fp32", "method": "sft"}),  # one sequence: nothing is padded
        ("qwen3", {"precision": "fp32", "attention": "eager"}),
        ("qwen3", {"precision": "fp32", "lora_rank": 4}),
        ("qwen3", {"precision": "fp32", "lora_rank": 4, "lora_targets": "attention"}),
        ("qwen3", {"precision": "pure"}),
        ("qwen3", {"precision": "pure", "lora_rank": 4}),
        ("qwen3", {"precision": "amp"}),
        ("qwen3", {"precision": "fp32", "lora_rank": 4, "load_in_4bit": True}),
        ("qwen3", {"precision": "fp32", "lora_rank": 4, "quant": "bf16"}),
    ],
)
def test_on_a_cpu_a_layer_keeps_what_is_planned_to_the_byte(family: str, fields: dict[str, Any]) -> None:
    request = TrainingRequest(**{"method": "reward", "max_length": 50, **fields})
    config = {**SMALL, "num_hidden_layers": 4, "max_position_embeddings": 512, "model_type": family}
    config["architectures"] = ["Qwen2ForCausalLM" if family == "qwen2" else "Qwen3ForCausalLM"]
    model = cast_of(ModelSpec.from_config(config), request)[0]
    assert _kept_by_a_layer(request, family) == layer_bytes(model, request)


def test_a_layer_of_experts_saves_what_is_planned() -> None:
    length, shape = 128, {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 192}
    shape |= {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"head_dim": 64, "vocab_size": 64}
    few, many = (_saved(Qwen3MoeConfig(num_hidden_layers=n, **shape), length) for n in (2, 6))
    config = {**shape, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 6}
    request = TrainingRequest("sft", max_length=length)
    model = cast_of(ModelSpec.from_config(config | {"max_position_embeddings": 512}), request)[0]
    # Outside fake tensors SDPA's CPU kernel reads unexpanded keys and values: 4 · (q − kv) bytes less.
    planned = layer_bytes_per_token(model, request) - 4 * (256 - 128)
    assert (many - few) / 4 / length == pytest.approx(planned, rel=0.02)


def test_the_loss_of_a_language_model_needs_12_bytes_a_logit() -> None:
    length, vocab = 1024, 60_000
    model, request = _planned("qwen3", "lm", length, 2, vocab)
    planned = logits_bytes(model, request) + checkpoint_bytes(model, request)
    assert _peak("qwen3", "lm", length, checkpointing=True, layers=2, vocab=vocab) == pytest.approx(planned, rel=0.03)


def test_a_reward_head_needs_no_logits() -> None:
    small, large = (_peak("qwen3", "score", 1024, checkpointing=True, layers=2, vocab=v) for v in (1000, 15_000))
    assert large == pytest.approx(small, rel=0.01)


def _log_probabilities(logits: torch.Tensor, ids: torch.Tensor, *, in_16_bit: bool) -> torch.Tensor:
    """Of the tokens that were sampled, as TRL's trainers compute them at temperature 0.9."""
    if in_16_bit:
        scaled = logits / 0.9
        rows = [
            torch.log_softmax(row, -1).gather(-1, row_ids[:, None]) for row, row_ids in zip(scaled, ids, strict=True)
        ]
        return torch.stack(rows)
    scaled = logits.float() / 0.9
    return scaled.gather(-1, ids[..., None]).squeeze(-1) - torch.stack([torch.logsumexp(row, -1) for row in scaled])


@pytest.mark.parametrize(
    ("in_16_bit", "sequences", "kind"), [(True, 1, "rl-16bit"), (True, 4, "rl-16bit"), (False, 2, "rl-fp32")]
)
def test_a_policy_loss_needs_6_to_16_bytes_a_logit(in_16_bit: bool, sequences: int, kind: str) -> None:
    length, vocab = 256, 50_000
    with FakeTensorMode():
        hidden = torch.zeros(sequences, length, 64, dtype=torch.bfloat16, requires_grad=True)
        head = torch.zeros(64, vocab, dtype=torch.bfloat16, requires_grad=True)
        ids = torch.zeros(sequences, length, dtype=torch.long)
        tracker = MemTracker()
        with tracker:
            _log_probabilities(hidden @ head, ids, in_16_bit=in_16_bit).float().mean().backward()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    total = next(value for name, value in peak.items() if str(name).endswith("Total"))
    assert total / (sequences * length * vocab) == pytest.approx(LOGIT_BYTES[kind], rel=0.02)


@pytest.mark.parametrize(("length", "phase"), [(64, "step"), (2048, "backward")])
def test_a_whole_step_of_adamw_needs_what_the_plan_says(length: int, phase: str) -> None:
    """Two steps of a 16-bit model under torch's AdamW, from forward pass to update: the larger phase is the peak."""
    config = Qwen3Config(num_hidden_layers=2, vocab_size=30_000, head_dim=64, **SHAPE)
    with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(2):
                _step(model, "lm", torch.zeros(1, length, dtype=torch.long))
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                tracker.reset_mod_stats()
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    measured = next(value for name, value in peak.items() if str(name).endswith("Total"))
    spec = ModelSpec.from_config(
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 2, "vocab_size": 30_000}
        | SHAPE
        | {"head_dim": 64}
    )
    request = TrainingRequest("sft", max_length=length, precision="pure", runtime_bytes=0)
    (card,) = plan_training(spec, parse_gpu("a100"), request).cards
    assert card.phase == phase
    assert card.used_bytes == pytest.approx(measured, rel=0.03)
