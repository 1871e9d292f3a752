"""The head of a reward model: a few linear layers in fp32."""

from __future__ import annotations

import torch
from torch import nn

from qserve.reward.checkpoints import HeadLayer, RewardHead
from qserve.reward.weights import read_tensors

__all__ = ["ScoreHead"]


class ScoreHead(nn.Module):
    """Linear layers with a ReLU between them, in fp32 whatever the body is in, and never quantized. Without any it
    gives the hidden states themselves.
    """

    def __init__(self, head: RewardHead) -> None:
        super().__init__()
        linears = (_linear(layer) for layer in head.layers) if head.answer_ids is None else (_log_odds(head),)
        self.layers = nn.ModuleList(linears)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` [rows, hidden size] in any dtype to [rows, labels] in fp32."""
        states = hidden.float()
        for index, layer in enumerate(self.layers):
            states = layer(states if index == 0 else torch.relu(states))
        return states


def _linear(layer: HeadLayer) -> nn.Linear:
    num_out, num_in = layer.weight.shape
    linear = nn.Linear(num_in, num_out, bias=layer.bias is not None, dtype=torch.float32)
    parts = [part for part in (layer.weight, layer.bias) if part is not None]
    found = read_tensors(parts)
    linear.weight.data = found[layer.weight.name].float().clone()
    if layer.bias is not None:
        linear.bias.data = found[layer.bias.name].float().clone()
    return linear


def _log_odds(head: RewardHead) -> nn.Linear:
    """Of two rows of a language-model head: one linear layer whose value is the difference of their logits."""
    assert head.answer_ids is not None
    stored = head.layers[0].weight
    rows = read_tensors([stored])[stored.name][list(head.answer_ids)].float()
    linear = nn.Linear(rows.shape[1], 1, bias=False, dtype=torch.float32)
    linear.weight.data = (rows[:1] - rows[1:]).clone()
    return linear
