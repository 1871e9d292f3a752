"""`QuantizePlan`: whether a checkpoint can be quantized so, what stays in 16 bit, and what that takes; no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from qserve.core.families import FAMILIES
from qserve.core.nested import quantization_config
from qserve.core.tensors import Tensor
from qserve.derive.quantize.left_out import LeftOut, group_size_of, is_quantized, left_out_of
from qserve.derive.quantize.methods import Method
from qserve.derive.source import Source
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.planner.siblings import base_of, sibling_of
from qserve.units import MIB

__all__ = ["QuantizePlan", "check_sibling", "plan_quantize"]

# Python with torch, transformers and llm-compressor or bitsandbytes: runs of the demo held 0.47 to 0.62 GiB.
_RUNTIME_BYTES = 704 * MIB
_FP32 = 4
# The Hessian, its inverse and what factoring it takes.
_HESSIANS_AT_ONCE = 3


@dataclass(frozen=True)
class QuantizePlan:
    """What is made of `source`.

    Attributes:
        left_out: modules that stay in 16 bit.
        group_size: columns that share a scale; 0: whole rows do.
        num_bytes: of the new weights.
        memory_bytes: of RAM at most.
        num_quantized: weights that are stored in fewer bits.
        class_name: transformers' class of the model.
        is_dense: neither experts nor linear attention.
    """

    source: Source
    method: Method
    left_out: tuple[LeftOut, ...]
    group_size: int
    num_bytes: int
    memory_bytes: int
    num_quantized: int
    class_name: str
    is_dense: bool
    tensors: tuple[Tensor, ...] = field(repr=False)

    @property
    def source_bytes(self) -> int:
        """Of the weights that it is made from."""
        return sum(one.nbytes for one in self.tensors)

    @property
    def ignore(self) -> tuple[str, ...]:
        """As the library that quantizes takes it."""
        return tuple(one.name if self.method.environment is None else one.pattern for one in self.left_out)


def check_sibling(model_id: str, method: Method) -> None:
    """Raises UsageError where somebody published what would be made."""
    published = ((scheme, sibling_of(model_id, scheme)) for scheme in method.siblings)
    scheme, sibling = next(((scheme, one) for scheme, one in published if one is not None), (None, None))
    if sibling is not None:
        raise UsageError(
            f"{sibling} is published, made with calibration data from {model_id}: qserve up {model_id} --quant "
            f"{scheme} serves it; --anyway makes your own"
        )


def plan_quantize(
    source: Source, method: Method, group_size: int | None, max_length: int, num_samples: int
) -> QuantizePlan:
    """The plan, by config and headers alone.

    Raises UsageError for what is quantized already, for a kind of model that `method` was not tried with, and for
    groups that do not divide.
    """
    checkpoint = source.checkpoint
    if quantization_config(checkpoint.config):
        known = base_of(checkpoint.id)
        raise UsageError(
            f"{checkpoint.id} is quantized already; quantize the 16-bit model{f' {known}' if known else ''} instead"
        )
    tensors = checkpoint.tensors
    if tensors is None:
        raise BrokenCheckpoint(f"{source.folder} has no *.safetensors to quantize; fetch the safetensors version of it")
    class_name = _class_of(source)
    is_dense = not any(".linear_attn." in one.name or ".mlp.experts." in one.name for one in tensors)
    if method.dense_only and not is_dense:
        raise UsageError(
            f"--to {method.name} is for dense models, and {checkpoint.id} has experts or linear attention; take --to "
            "w4a16 or --to fp8"
        )
    size = group_size_of(tensors, group_size, method.bits) if method.in_groups else 0
    quantized = [one for one in tensors if is_quantized(one, method.bits)]
    if not quantized:
        raise BrokenCheckpoint(f"{checkpoint.id} has no linear layers that qserve knows how to quantize")
    num_bytes = sum(_stored_bytes(one, method, size) for one in tensors)
    num_tokens = min(num_samples, 1 << 16) * max_length
    return QuantizePlan(
        source,
        method,
        left_out_of((one.name for one in tensors), method.bits),
        size,
        num_bytes,
        _memory_bytes(tensors, quantized, method, num_bytes, num_tokens, checkpoint.spec.hidden_size),
        len(quantized),
        class_name,
        is_dense,
        tensors,
    )


def _class_of(source: Source) -> str:
    """transformers' class of a language model. Raises UsageError for one that reads more than text, or scores."""
    architecture = str(next(iter(source.checkpoint.config.get("architectures") or ()), ""))
    known = {family.causal_lm for family in FAMILIES.values() if family.has_library_class}
    if architecture not in known:
        raise UsageError(
            f"{source.checkpoint.id} is a {architecture or 'model of no named class'}; qserve quantizes models that "
            "generate text alone (…ForCausalLM). Others are quantized while loading: --quant fp8, int8 or 4bit of "
            "qserve up"
        )
    return architecture


def _stored_bytes(tensor: Tensor, method: Method, group_size: int) -> int:
    if not is_quantized(tensor, method.bits):
        return tensor.nbytes
    rows, columns = tensor.shape
    group = group_size or (64 if method.in_groups or method.bits == 4 else columns)
    scale_bits = method.scale_bits if method.environment is not None else 9
    return tensor.num_elements * method.bits // 8 + rows * math.ceil(columns / group) * scale_bits // 8


def _memory_bytes(
    tensors: Iterable[Tensor], quantized: list[Tensor], method: Method, num_bytes: int, num_tokens: int, hidden: int
) -> int:
    """The source, which is mapped to the end, beside the larger of what calibration holds and the result."""
    calibrating = _calibration_bytes(quantized, num_tokens, hidden) if method.is_calibrated else 0
    return _RUNTIME_BYTES + sum(one.nbytes for one in tensors) + max(calibrating, num_bytes)


def _calibration_bytes(quantized: list[Tensor], num_tokens: int, hidden: int) -> int:
    """Each weight once more, as it was rounded; a layer's Hessians, and its inputs and outputs in 16 bit."""
    layers: dict[str, int] = {}
    for one in quantized:
        before, _, rest = one.name.partition(".layers.")
        layer = f"{before}.{rest.partition('.')[0]}"
        layers[layer] = layers.get(layer, 0) + _FP32 * one.shape[1] ** 2
    widest = max(one.shape[1] for one in quantized)
    hessians = max(layers.values()) + _HESSIANS_AT_ONCE * _FP32 * widest**2
    return sum(one.nbytes for one in quantized) + hessians + 2 * 2 * num_tokens * hidden
