"""Weights as they lie in memory: bytes by kind of module, by dtype, by device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from qserve.core.tensors import role_of
from qserve.model.cpu.experts import CompiledExperts
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import Matrix
from qserve.model.cpu.shortlist import ShortlistHead
from qserve.model.cuda.linear import CardLinear
from qserve.model.packed_linear import PackedLinear
from qserve.model.quantize import state_tensors

__all__ = ["MeasuredTensor", "measured_tensors", "weights_by_device", "weights_by_kind", "weights_bytes"]

_KINDS = {
    "embedding": "embedding",
    "lm_head": "lm_head",
    "expert": "experts",
    "router": "routers",
    "norm": "norms",
    "linear_state": "linear_attention",
    "vision": "vision",
    "audio": "audio",
    "mtp": "mtp",
    "head": "head",
}


@dataclass(frozen=True, slots=True)
class MeasuredTensor:
    """One tensor in memory: `kind` of module, `dtype` as it is stored (nf4, fp4), `device`, `num_bytes`."""

    kind: str
    dtype: str
    device: str
    num_bytes: int


def measured_tensors(model: nn.Module) -> Iterator[MeasuredTensor]:
    """Parameters, buffers, scales and packed weights, each memory once; what lies on disk is left out."""
    seen: set[tuple[str, int]] = set()
    for name, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        tensors = [(f"{name}.{key}", tensor) for key, tensor in own]
        tensors += [(f"{name}.weight", tensor) for tensor in state_tensors(module)]
        for full_name, tensor in tensors:
            place = (str(tensor.device), tensor.data_ptr())
            if tensor.device.type != "meta" and tensor.nbytes and place not in seen:
                seen.add(place)
                yield MeasuredTensor(_kind(full_name), _dtype(module, tensor), str(tensor.device), tensor.nbytes)
        if isinstance(module, PackedLinear):
            yield MeasuredTensor(_kind(f"{name}.weight"), "bfloat16", "cpu", module.weight_bytes)
        if isinstance(module, CompiledLinear):
            yield from _of_matrix(module.matrix, _kind(f"{name}.weight"))
        if isinstance(module, CompiledExperts):
            for matrix in module.matrices:
                yield from _of_matrix(matrix, _kind(f"{name}.gate_up_proj"))
        if isinstance(module, ShortlistHead):
            yield from _of_matrix(module.bounds, _kind(f"{name}.weight"))


def _of_matrix(matrix: Matrix, kind: str) -> Iterator[MeasuredTensor]:
    yield MeasuredTensor(kind, matrix.format, "cpu", matrix.code_bytes)
    if matrix.scale_bytes:
        yield MeasuredTensor(kind, "float32", "cpu", matrix.scale_bytes)
    if matrix.bias is not None:
        yield MeasuredTensor(kind, "bfloat16", "cpu", matrix.bias.nbytes)


def weights_bytes(model: nn.Module) -> int:
    """All of `measured_tensors` together."""
    return sum(tensor.num_bytes for tensor in measured_tensors(model))


def weights_by_kind(model: nn.Module) -> dict[str, dict[str, int]]:
    """Bytes by kind and dtype: {"attention": {"int8": …, "float32": …}, "lm_head": {"bfloat16": …}, …}."""
    table: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for tensor in measured_tensors(model):
        table[tensor.kind][tensor.dtype] += tensor.num_bytes
    return {kind: dict(row) for kind, row in table.items()}


def weights_by_device(model: nn.Module) -> dict[str, int]:
    """Bytes by device: {"cuda:0": …, "cpu": …}."""
    table: dict[str, int] = defaultdict(int)
    for tensor in measured_tensors(model):
        table[tensor.device] += tensor.num_bytes
    return dict(table)


def _kind(name: str) -> str:
    role = role_of(name)
    if role != "linear":
        return _KINDS[role]
    if ".linear_attn." in name:
        return "linear_attention"
    if "attn." in name:
        return "attention"
    return "mlp" if ".mlp." in name else "other"


def _dtype(module: nn.Module, tensor: torch.Tensor) -> str:
    """torch's name, or bitsandbytes' where the bytes hold packed 4-bit numbers."""
    if isinstance(module, CardLinear) and tensor is module.weight:
        return module.kind
    state = getattr(getattr(module, "weight", None), "quant_state", None)
    if state is not None and tensor.dtype == torch.uint8 and tensor is not getattr(state, "absmax", None):
        return str(state.quant_type)
    return str(tensor.dtype).removeprefix("torch.")
