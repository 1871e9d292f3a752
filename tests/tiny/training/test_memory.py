"""Activations and logits of a training plan against torch's own account: real modules of transformers, fake tensors.

MemTracker follows every storage of a forward and backward pass; FakeTensorMode lets it do so without the memory.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen2Config, Qwen3Config

from qserve.core.model_spec import ModelSpec
from qserve.planner.training import TrainingRequest
from qserve.planner.training.activations import (
    checkpoint_bytes,
    layer_bytes_per_token,
    logits_bytes,
    recompute_bytes,
)
from qserve.planner.training.models import cast_of

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
    few, many = (_peak(family, "lm", length, checkpointing=False, layers=n, vocab=128) for n in (2, 6))
    model, request = _planned(family, "lm", length, 6, 128)
    # The CPU kernel of SDPA keeps one more matrix of length × length, which flash attention on a GPU does not.
    assert (many - few) / 4 / length - 2 * length == pytest.approx(layer_bytes_per_token(model, request), rel=0.01)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_gradient_checkpointing_keeps_layer_inputs_and_one_layer(family: str) -> None:
    length = 1024
    few, many = (_peak(family, "score", length, checkpointing=True, layers=n, vocab=128) for n in (2, 6))
    model, request = _planned(family, "score", length, 6, 128)
    sequences = request.sequences  # a reward request counts pairs
    assert (many - few) / 4 == pytest.approx(checkpoint_bytes(model, request) / 6 / sequences, rel=0.01)
    kept = checkpoint_bytes(model, request) / sequences
    layer = recompute_bytes(model, request) / sequences + 2 * length * length
    assert many == pytest.approx(kept + layer, rel=0.05)


def test_the_loss_of_a_language_model_needs_12_bytes_a_logit() -> None:
    length, vocab = 1024, 60_000
    model, request = _planned("qwen3", "lm", length, 2, vocab)
    planned = logits_bytes(model, request) + checkpoint_bytes(model, request)
    assert _peak("qwen3", "lm", length, checkpointing=True, layers=2, vocab=vocab) == pytest.approx(planned, rel=0.03)


def test_a_reward_head_needs_no_logits() -> None:
    small, large = (_peak("qwen3", "score", 1024, checkpointing=True, layers=2, vocab=v) for v in (1000, 15_000))
    assert large == pytest.approx(small, rel=0.01)
