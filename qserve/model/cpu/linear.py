"""Linear layers that compute by our own products: bf16, bitsandbytes' LLM.int8, NF4 and FP4, each as it is stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qserve.model.cpu.build import library
from qserve.model.cpu.matrix import Matrix, bfloat16_matrix, codes_matrix, has_fast_products, int8_matrix
from qserve.model.cpu.packing import Form, Numbers

__all__ = ["CompiledLinear", "compiled_from", "four_bit_matrix", "takes_bfloat16"]

_INT8_RANGE = 127


class CompiledLinear(nn.Module):
    """A weight in panels (matrix.h), on a CPU. Inference only; states are bf16, and are made so where they are not.

    The weight is not a parameter: it is packed, and nothing but the compiled products reads it.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.in_features, self.out_features, self.matrix = matrix.in_features, matrix.out_features, matrix

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., in_features] to [..., out_features], in the dtype of `x`."""
        rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
        return self.matrix.product(rows).view(*x.shape[:-1], self.out_features).to(x.dtype)

    def extra_repr(self) -> str:
        """Shown where the model is printed."""
        has_bias = self.matrix.bias is not None
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={has_bias}, {self.matrix.format}"
        )


def takes_bfloat16() -> bool:
    """Whether our products serve plain bf16 layers: without AVX2 and FMA torch's are faster."""
    return library() is not None and has_fast_products()


@torch.no_grad()
def compiled_from(linear: Any) -> CompiledLinear | None:
    """The same layer on our products; None for other kinds of layers, and for shapes that these do not take."""
    matrix = None
    name = type(linear).__name__
    if name == "Linear8bitLt":
        matrix = _of_int8(linear)
    elif name == "Linear4bit":
        matrix = _of_4_bit(linear)
    elif type(linear) is nn.Linear and takes_bfloat16():
        matrix = bfloat16_matrix(linear.weight.data, linear.bias)
    return None if matrix is None else CompiledLinear(matrix)


def _of_int8(linear: Any) -> Matrix | None:
    """bitsandbytes keeps scales beside the weight, and moves both to `state` in the first call."""
    weight = linear.weight.data if linear.state.CB is None else linear.state.CB
    scales = getattr(linear.weight, "SCB", None)
    scales = linear.state.SCB if scales is None else scales
    if scales is None or weight.dtype != torch.int8:
        return None
    return int8_matrix(weight, scales.float() / _INT8_RANGE, linear.bias)


def _of_4_bit(linear: Any) -> Matrix | None:
    state = getattr(linear.weight, "quant_state", None)
    if state is None or getattr(state, "packing_format_for_cpu", False) or len(state.shape) != 2:
        return None
    return four_bit_matrix(linear.weight.data, state, linear.bias)


def four_bit_matrix(packed: torch.Tensor, state: Any, bias: torch.Tensor | None = None) -> Matrix | None:
    """Of bitsandbytes' `packed` codes and the `quant_state` of a weight [out, in]; None where blocks cross its rows.

    A byte holds two codes, the first one in its upper half; scales may be quantized themselves.
    """
    out, width = state.shape
    if width % state.blocksize:
        return None
    codes = Numbers(packed.view(torch.uint8).view(out, width // 2), Form.PAIRS, (out, width))
    scales = _block_scales(state).view(out, width // state.blocksize)
    return codes_matrix(state.quant_type, codes, state.code, scales, bias=bias)


def _block_scales(state: Any) -> torch.Tensor:
    if not state.nested:
        scales: torch.Tensor = state.absmax.float()
        return scales
    from bitsandbytes.functional import dequantize_blockwise

    nested: torch.Tensor = dequantize_blockwise(state.absmax, state.state2) + state.offset
    return nested.float()
