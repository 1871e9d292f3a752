"""Experts of a layer by products of our own (experts.c): all gates in one matrix, all ups, all downs.

In bf16 as they were trained, or made int8 or 4 bit while loading, expert by expert, as bitsandbytes makes linear
layers: the library joins experts in one parameter, which bitsandbytes does not see (bitsandbytes#1849).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from qserve.model.cpu.build import library
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.matrix import PANEL, Matrix, bfloat16_matrix, joined

__all__ = [
    "CompiledExperts",
    "Quantize",
    "are_computed_as_ours",
    "compiled_experts_from",
    "joined_experts",
    "quantized_experts_from",
]

Quantize = Callable[[torch.Tensor], Matrix | None]
"""A weight [out, in] in 16 bit to one of ours; None for a shape that the products do not take."""


class CompiledExperts(nn.Module):
    """In place of the library's module of a layer's experts. Inference only; the weights are no parameters."""

    def __init__(self, num_experts: int, gate: Matrix, up: Matrix, down: Matrix) -> None:
        """`gate` and `up` [experts · inner, hidden], `down` [experts · hidden, inner], whole panels an expert."""
        super().__init__()
        self.num_experts = num_experts
        self.matrices = (gate, up, down)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """`hidden_states` [tokens, hidden], of which each token's experts and their shares are [tokens, top]."""
        compiled = library()
        assert compiled is not None, "the library was loaded when it was made"
        states = hidden_states.to(torch.bfloat16).contiguous()
        chosen, shares = top_k_index.long().contiguous(), top_k_weights.float().contiguous()
        out = torch.empty_like(states)
        failed = compiled.mix_experts(
            *(ctypes.byref(matrix.c) for matrix in self.matrices),
            ctypes.c_long(self.num_experts),
            _address(states),
            ctypes.c_long(len(states)),
            _address(chosen),
            _address(shares),
            ctypes.c_long(chosen.shape[1]),
            _address(out),
        )
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
    parts = _parts_of(module) if takes_bfloat16() else None
    if parts is None:
        return None
    return _build(len(parts[0]), [bfloat16_matrix(part.flatten(0, 1)) for part in parts])


@torch.no_grad()
def quantized_experts_from(module: Any, quantize: Quantize) -> CompiledExperts | None:
    """Experts of 16 bit, each weight made smaller by `quantize`; None for other modules and shapes."""
    parts = _parts_of(module) if library() is not None else None
    if parts is None:
        return None
    gates, ups, downs = ([quantize(weight) for weight in part] for part in parts)
    return joined_experts(gates, ups, downs)


def joined_experts(
    gates: Sequence[Matrix | None], ups: Sequence[Matrix | None], downs: Sequence[Matrix | None]
) -> CompiledExperts | None:
    """Of a layer's experts, each by itself; None where one is missing, or differs in its format or shape.

    `gates` and `ups` have to be in one format, and in one order of inputs.
    """
    gate, up, down = (_joined(part) for part in (gates, ups, downs))
    if gate is None or up is None or down is None:
        return None
    alike = (gate.kind, gate.block, gate.offsets is None) == (up.kind, up.block, up.offsets is None)
    return CompiledExperts(len(gates), gate, up, down) if alike and _same(gate.order, up.order) else None


def _joined(parts: Sequence[Matrix | None]) -> Matrix | None:
    found = [one for one in parts if one is not None]
    return joined(found) if len(found) == len(parts) else None


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _build(num: int, matrices: list[Matrix | None]) -> CompiledExperts | None:
    gate, up, down = matrices
    return None if gate is None or up is None or down is None else CompiledExperts(num, gate, up, down)


def _parts_of(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Gates, ups [experts, inner, hidden] and downs [experts, hidden, inner] in bf16, of whole panels each."""
    both, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if not isinstance(both, nn.Parameter) or not isinstance(down, nn.Parameter):
        return None
    if both.ndim != 3 or both.dtype != torch.bfloat16 or down.dtype != torch.bfloat16:
        return None
    if not are_computed_as_ours(module) or any(one.device.type != "cpu" for one in module.parameters()):
        return None
    num, inner, hidden = len(both), both.shape[1] // 2, both.shape[2]
    if inner % PANEL or hidden % PANEL or tuple(down.shape) != (num, hidden, inner):
        return None
    return both.data[:, :inner], both.data[:, inner:], down.data


def are_computed_as_ours(module: Any) -> bool:
    """Gate above up, SiLU between them, no biases, [outputs, inputs]: as the library says of a module of experts."""
    config = getattr(module, "config", None)
    return (
        getattr(config, "hidden_act", None) == "silu"
        and getattr(module, "is_concatenated", False)
        and getattr(module, "has_gate", False)
        and not getattr(module, "is_transposed", True)
        and not getattr(module, "has_bias", True)
    )


def _address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
