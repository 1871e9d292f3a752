"""Experts of a layer by products of our own (experts.c), in bf16: all gates in one matrix, all ups, all downs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn

from qserve.model.cpu.build import library
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.matrix import PANEL, Matrix, bfloat16_matrix

__all__ = ["CompiledExperts", "compiled_experts_from"]


class CompiledExperts(nn.Module):
    """In place of the library's module of a layer's experts. Inference only; the weights are no parameters."""

    def __init__(self, num_experts: int, gate: Matrix, up: Matrix, down: Matrix) -> None:
        """`gate` and `up` [experts · inner, hidden], `down` [experts · hidden, inner], whole panels an expert."""
        super().__init__()
        self.num_experts, self.matrices = num_experts, (gate, up, down)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """`hidden_states` [tokens, hidden], of which each token's experts and their shares are [tokens, top]."""
        compiled = library()
        assert compiled is not None, "whoever made it asked for the library"
        states = hidden_states.to(torch.bfloat16).contiguous()
        chosen, shares = top_k_index.long().contiguous(), top_k_weights.float().contiguous()
        out = torch.empty_like(states)
        failed = compiled.mix_experts(
            *(ctypes.byref(matrix.c) for matrix in self.matrices), ctypes.c_long(self.num_experts), _address(states),
            ctypes.c_long(len(states)), _address(chosen), _address(shares), ctypes.c_long(chosen.shape[1]),
            _address(out),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"experts of {len(states)} tokens")
        return out.to(hidden_states.dtype)

    def extra_repr(self) -> str:
        """Shown where the model is printed."""
        gate = self.matrices[0]
        return f"{self.num_experts} experts, hidden={gate.in_features}, {gate.format}"


@torch.no_grad()
def compiled_experts_from(module: Any) -> CompiledExperts | None:
    """The same experts on our products; None for other modules and shapes, and where plain bf16 layers are not ours."""
    both, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(both, nn.Parameter) or not isinstance(down, nn.Parameter) or not takes_bfloat16():
        return None
    if both.ndim != 3 or both.dtype != torch.bfloat16 or down.dtype != torch.bfloat16 or not _is_known(module):
        return None
    num, inner, hidden = len(both), both.shape[1] // 2, both.shape[2]
    if inner % PANEL or hidden % PANEL or tuple(down.shape) != (num, hidden, inner):
        return None
    parts = (both.data[:, :inner].flatten(0, 1), both.data[:, inner:].flatten(0, 1), down.data.flatten(0, 1))
    made = [matrix for part in parts if (matrix := bfloat16_matrix(part, None)) is not None]
    return CompiledExperts(num, *made) if len(made) == len(parts) else None


def _is_known(module: Any) -> bool:
    """Gate above up, SiLU between them, no biases, [outputs, inputs]: as the library says of a module of experts."""
    config = getattr(module, "config", None)
    return (
        getattr(config, "hidden_act", None) == "silu"
        and getattr(module, "is_concatenated", False)
        and getattr(module, "has_gate", False)
        and not getattr(module, "is_transposed", True)
        and not getattr(module, "has_bias", True)
        and all(parameter.device.type == "cpu" for parameter in module.parameters())
    )


def _address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
