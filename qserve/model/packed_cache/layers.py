"""Layers and experts of our own products as tensors with a description, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qserve.model.cpu.experts import CompiledExperts
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import Matrix
from qserve.model.cpu.shortlist import ShortlistHead

__all__ = ["Layers", "Packed", "described", "num_packed_bytes", "other_tensors", "packed_layers", "rebuilt"]

_NUMBERS = ("format", "kind", "out_features", "in_features", "block")
_TENSORS = ("codes", "scales", "offsets", "values", "bias", "order")
_EXPERTS = ("gate", "up", "down")
Tensors = Mapping[str, torch.Tensor]
Packed = CompiledLinear | CompiledExperts
Layers = Mapping[str, Packed]


def packed_layers(model: nn.Module) -> dict[str, Packed]:
    """By name, in the model's order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Packed)}


def num_packed_bytes(model: nn.Module) -> int:
    """What the weights of these layers take."""
    return sum(matrix.code_bytes for layer in packed_layers(model).values() for matrix in _matrices(layer))


def _matrices(layer: Packed) -> tuple[Matrix, ...]:
    return layer.matrices if isinstance(layer, CompiledExperts) else (layer.matrix,)


def other_tensors(model: nn.Module) -> dict[str, list[Any]]:
    """Dtype and shape of every parameter and buffer: what a model with packed layers has beside them."""
    held = [*model.named_parameters(), *model.named_buffers()]
    return {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in held}


def described(layers: Layers) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(JSON that describes them, their tensors by name). Activations are as the format has them: exact."""
    about: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        if isinstance(layer, CompiledExperts):
            parts = zip(_EXPERTS, layer.matrices, strict=True)
            held = {part: _add(matrix, f"{name}.{part}", tensors) for part, matrix in parts}
            about[name] = {"num_experts": layer.num_experts, **held}
            continue
        about[name] = {"matrix": _add(layer.matrix, name, tensors)}
        if isinstance(layer, ShortlistHead):
            about[name]["bounds"] = _add(layer.bounds, f"{name}.bounds", tensors)
            tensors[f"{name}.errors"] = layer.errors
    return about, tensors


def rebuilt(name: str, about: Mapping[str, Any], tensors: Tensors) -> Packed:
    """What `described` was told of as `name`."""
    if "num_experts" in about:
        gate, up, down = (_matrix(f"{name}.{part}", about[part], tensors) for part in _EXPERTS)
        return CompiledExperts(about["num_experts"], gate, up, down)
    matrix = _matrix(name, about["matrix"], tensors)
    if "bounds" not in about:
        return CompiledLinear(matrix)
    return ShortlistHead(matrix, _matrix(f"{name}.bounds", about["bounds"], tensors), tensors[f"{name}.errors"])


def _add(matrix: Matrix, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    held = {part: getattr(matrix, part) for part in _TENSORS if getattr(matrix, part) is not None}
    tensors |= {f"{name}.{part}": tensor for part, tensor in held.items()}
    return {**{key: getattr(matrix, key) for key in _NUMBERS}, "tensors": list(held)}


def _matrix(name: str, about: Mapping[str, Any], tensors: Tensors) -> Matrix:
    held: dict[str, Any] = {part: tensors[f"{name}.{part}"] for part in about["tensors"]}
    return Matrix(**{key: about[key] for key in _NUMBERS}, **held)
