"""Products by weights in 8 and 4 bits under one name each, as torch's own operations: opaque to traces and captures.

On a card `products` computes them, by the number of rows; elsewhere they are what they mean, a product in float32.
"""

from __future__ import annotations

import torch

from qserve.model.cuda.products import by_rows
from qserve.model.cuda.weights import FourBitWeight, Int8Weight, Weight

__all__ = ["by_meaning", "multiply"]

_LIBRARY = torch.library.Library("qserve_card", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("int8_linear(Tensor x, Tensor codes, Tensor scales, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.define(  # type: ignore[no-untyped-call]
    "four_bit_linear(Tensor x, Tensor packed, Tensor code, Tensor scales, Tensor[] nested, str kind, int block, "
    "int[] part_rows, Tensor? bias) -> Tensor"
)


def multiply(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """`x` [..., inputs] times the transposed weight, and `bias`: [..., outputs] in the dtype of `x`."""
    answer: torch.Tensor
    if isinstance(weight, Int8Weight):
        answer = torch.ops.qserve_card.int8_linear(x, weight.codes, weight.scales, bias)
    else:
        assert isinstance(weight, FourBitWeight)
        nested = list(weight.nested or ())
        answer = torch.ops.qserve_card.four_bit_linear(
            x, weight.packed, weight.code, weight.scales, nested, weight.kind, weight.block, weight.part_rows, bias
        )
    return answer


def by_meaning(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    """`rows` [rows, inputs] in float32 by the weight in float32."""
    wide = rows.new_empty(weight.outputs, weight.inputs, dtype=torch.float32)
    weight.unpack(0, wide)
    return torch.nn.functional.linear(rows.float(), wide, None if bias is None else bias.float()).to(rows.dtype)


def _of_any_shape(product: object, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    rows = x.reshape(-1, weight.inputs).contiguous()
    answer: torch.Tensor = product(rows, weight, bias)  # type: ignore[operator]
    return answer.view(*x.shape[:-1], weight.outputs)


def _implement(device: str, product: object) -> None:
    def int8(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _of_any_shape(product, x, Int8Weight(codes, scales), bias)

    def four_bit(
        x: torch.Tensor,
        packed: torch.Tensor,
        code: torch.Tensor,
        scales: torch.Tensor,
        nested: list[torch.Tensor],
        kind: str,
        block: int,
        part_rows: list[int],
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        deeper = (nested[0], nested[1], nested[2]) if nested else None
        weight = FourBitWeight(kind, packed, code, scales, deeper, block, x.shape[-1], tuple(part_rows))
        return _of_any_shape(product, x, weight, bias)

    _LIBRARY.impl("int8_linear", int8, device)  # type: ignore[no-untyped-call]
    _LIBRARY.impl("four_bit_linear", four_bit, device)  # type: ignore[no-untyped-call]


def _of_shape(rows: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    return rows.new_empty(len(rows), weight.outputs)


_implement("CPU", by_meaning)
_implement("CUDA", by_rows)
_implement("Meta", _of_shape)
