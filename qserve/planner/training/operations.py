"""Floating-point operations that training takes of the model alone: the numerator of MFU (model FLOPs utilization).

As in PaLM, https://arxiv.org/abs/2204.02311, appendix B: a weight takes 2 operations a token forward, 2 for the
gradient that it passes on, 2 for its own; what is recomputed, padded or looked up (the embedding) does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qserve.planner.training.models import TrainedModel
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["Operations", "training_operations"]


@dataclass(frozen=True)
class Operations:
    """`per_token`: of all matrices; `per_position`: of attention, times the length of the token's sequence."""

    per_token: float
    per_position: float

    def of(self, tokens: float, length: float) -> float:
        """Of so many tokens in sequences of `length` tokens in the mean."""
        return tokens * (self.per_token + self.per_position * length)


def training_operations(models: Sequence[TrainedModel], request: TrainingRequest) -> Operations | None:
    """Of a token that is trained on; None where rollouts are generated meanwhile, which no step's time is without."""
    if request.method in ("ppo", "grpo"):
        return None
    (trained,) = (model for model in models if model.tuning is not None)
    matrices, attention = _matrices(trained), _attention(trained)
    adapters = sum(tensor.num_elements for tensor in trained.trained_tensors if ".lora_" in tensor.name)
    passes = {"head": 2, "lora": 4, "qlora": 4, "full": 6}[trained.tuning or "full"]
    per_token, per_position = passes * matrices + 6 * adapters, (1 if passes == 2 else 3) * attention
    if request.method == "dpo":  # the reference: a copy of the policy, or the policy without its adapters
        per_token, per_position = per_token + 2 * matrices, per_position + attention
    return Operations(float(per_token), float(per_position))


def _matrices(model: TrainedModel) -> float:
    """Weights that a token is multiplied with: of experts those that it is routed to; lm_head also where it is tied."""
    spec = model.spec
    share = spec.moe.num_experts_per_tok / spec.moe.num_experts if spec.moe else 1.0
    found = 0.0
    for tensor in model.tensors:
        if tensor.role in ("linear", "router") and len(tensor.shape) == 2:
            found += tensor.num_elements
        elif tensor.role == "expert":
            found += share * tensor.num_elements
    return found + (spec.vocab_size * spec.hidden_size if spec.head.kind == "lm" else 0)


def _attention(model: TrainedModel) -> float:
    """Forward, a token and a position of its sequence: two products, half of which the causal mask leaves."""
    spec = model.spec
    return 2.0 * spec.num_full_layers * spec.num_attention_heads * spec.head_dim
