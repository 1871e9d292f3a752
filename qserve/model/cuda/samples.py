"""Weights of a model's shapes whose numbers are random: what products are tried on before there is a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from qserve.core.schemes import SCHEMES
from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.weights import INT8, FourBitWeight, Int8Weight, Weight, has_whole_blocks

__all__ = ["Shape", "random_weight"]


@dataclass(frozen=True)
class Shape:
    """Of a linear layer: all of it that decides what a product does.

    Attributes:
        kind: of its weight: `int8`, `nf4` or `fp4`.
        outputs: rows of the weight.
        inputs: its columns.
        has_bias: whether one is added.
        block: numbers that share a scale; 0: a row does.
        is_nested: whether the scales are quantized as well.
        part_rows: of such that lie behind each other, the rows of each (`FourBitWeight`).
    """

    kind: str
    outputs: int
    inputs: int
    has_bias: bool
    block: int = 0
    is_nested: bool = False
    part_rows: tuple[int, ...] = ()

    @classmethod
    def of(cls, layer: CardLinear) -> Shape:
        """Of a layer that is there."""
        held = layer.held
        numbers = layer.kind, layer.out_features, layer.in_features, layer.bias is not None
        if not isinstance(held, FourBitWeight):
            return cls(*numbers)
        return cls(*numbers, held.block, held.nested is not None, held.part_rows)

    @classmethod
    def as_made_by(cls, scheme: str, outputs: int, inputs: int, *, has_bias: bool) -> Shape:
        """Of a layer that will be there: as bitsandbytes makes it for `scheme`, one of its own."""
        made = SCHEMES[scheme].made
        kind = INT8 if SCHEMES[scheme].bits == 8 else scheme.split("-")[1]
        assert made is not None, f"bitsandbytes makes {scheme}"
        numbers = kind, outputs, inputs, has_bias
        return cls(*numbers) if kind == INT8 else cls(*numbers, made.group_size, made.double_quant)

    @classmethod
    def behind_each_other(cls, parts: Sequence[Shape]) -> Shape | None:
        """Of one layer in the memory of all `parts`; None for parts that can't be one."""
        first, rows = parts[0], tuple(part.outputs for part in parts)
        if len({replace(part, outputs=0) for part in parts}) > 1:
            return None
        if not first.is_nested:
            return replace(first, outputs=sum(rows))
        is_whole = all(has_whole_blocks(part.outputs, part.inputs, part.block) for part in parts)
        return replace(first, outputs=sum(rows), part_rows=rows) if is_whole else None

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Shape:
        """What `to_json` made."""
        return cls(**{**found, "part_rows": tuple(found["part_rows"])})

    def to_json(self) -> dict[str, Any]:
        """Arguments of a trial."""
        return asdict(self)


def random_weight(shape: Shape, device: torch.device, seed: int = 0) -> Weight:
    """The same for the same `seed`; 4 bits take bitsandbytes."""
    generator = torch.Generator(device).manual_seed(seed)
    numbers = torch.randn(shape.outputs, shape.inputs, device=device, generator=generator)
    if shape.kind == INT8:
        scales = numbers.abs().amax(dim=1) / 127
        return Int8Weight((numbers / scales[:, None]).round().to(torch.int8), scales)
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(
        numbers, blocksize=shape.block, quant_type=shape.kind, compress_statistics=shape.is_nested
    )
    nested = None
    if shape.is_nested:  # parts have offsets of their own, which a product may not mistake for each other
        offsets = state.offset * torch.arange(1, 1 + max(1, len(shape.part_rows)), device=device)
        nested = state.state2.code, state.state2.absmax, offsets
    sizes = shape.block, shape.inputs, shape.part_rows
    return FourBitWeight(shape.kind, packed.flatten(), state.code, state.absmax, nested, *sizes)
