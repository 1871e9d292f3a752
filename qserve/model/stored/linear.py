"""Linear layers between the file and the form that they compute in: a stored layer's tensors, as they were written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qserve.errors import BrokenCheckpoint
from qserve.model.cpu.build import library
from qserve.model.cpu.experts import CompiledExperts
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import Matrix, codes_matrix, int8_matrix, use_own_threads
from qserve.model.mapped import MappedFiles
from qserve.model.stored.codes import Codes, Parts
from qserve.model.stored.layouts import StoredLayer

__all__ = ["Stored", "StoredLinear", "codes_of", "compile_stored", "matrix_of"]

_DTYPES = {
    "I32": torch.int32,
    "I64": torch.int64,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}


class Stored(nn.Module):
    """Stands for a part of the model while it is loaded; `compile_stored` replaces it."""

    def computing(self, dtype: torch.dtype) -> nn.Module:
        """What computes in `dtype` in its place. Raises BrokenCheckpoint."""
        raise NotImplementedError

    def release(self, files: MappedFiles) -> None:
        """Give back the pages of the files that it was read from."""
        raise NotImplementedError

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Never runs."""
        raise AssertionError("a stored layer was not replaced after loading")


class StoredLinear(Stored):
    """Takes what the file has for a linear layer, in the file's dtypes; `compile_stored` replaces it after loading."""

    def __init__(self, linear: nn.Linear, name: str, layer: StoredLayer) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._name, self._codes, self._ends = name, layer.codes, tuple(layer.parts)
        for end, tensor in layer.parts.items():
            if tensor.dtype not in _DTYPES:
                raise BrokenCheckpoint(f"{name}.{end} is stored as {tensor.dtype}; known are {', '.join(_DTYPES)}")
            empty = torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype], device="meta")
            self.register_parameter(end, nn.Parameter(empty, requires_grad=False))

    @torch.no_grad()
    def computing(self, dtype: torch.dtype) -> nn.Module:
        """See `Stored`: on our products, or a plain layer."""
        parts = {end: getattr(self, end).data for end in self._ends}
        codes, bias = codes_of(self._name, self._codes, parts, (self.out_features, self.in_features)), self._bias
        matrix = matrix_of(codes, bias) if dtype == torch.bfloat16 and library() is not None else None
        if matrix is not None:
            return CompiledLinear(matrix)
        plain = nn.Linear(self.in_features, self.out_features, bias=bias is not None, dtype=dtype, device="meta")
        plain.weight = nn.Parameter(codes.dense(dtype), requires_grad=False)
        if bias is not None:
            plain.bias = nn.Parameter(bias.data.to(dtype), requires_grad=False)
        return plain

    @property
    def _bias(self) -> Any:
        return getattr(self, "bias", None)

    def release(self, files: MappedFiles) -> None:
        """See `Stored`."""
        for end in self._ends:
            files.release(getattr(self, end).data)


def codes_of(name: str, read: Callable[[Parts], Codes], parts: Parts, shape: tuple[int, int]) -> Codes:
    """The weight [out, in] of the layer `name`. Raises BrokenCheckpoint where its tensors are not of `shape`."""
    try:
        codes = read(parts)
    except BrokenCheckpoint as error:
        raise BrokenCheckpoint(f"{name}: {error}") from error
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BrokenCheckpoint(f"{name}: its quantized tensors don't match each other ({error})") from error
    if codes.numbers.shape != shape:
        raise BrokenCheckpoint(
            f"{name} is stored with {list(codes.numbers.shape)} weights, but config.json calls for {list(shape)}: is "
            "it of another model?"
        )
    return codes


@torch.no_grad()
def compile_stored(model: nn.Module, dtype: torch.dtype, files: MappedFiles) -> int:
    """Replace every `Stored` module of `model` in place, each let go before the next; returns how many stay packed.

    The others become plain layers in `dtype`: all of them without the compiled library, and in other dtypes than bf16.
    """
    num_packed = 0
    for name, module in list(model.named_modules()):
        if not isinstance(module, Stored):
            continue
        made = module.computing(dtype)
        num_packed += isinstance(made, (CompiledLinear, CompiledExperts))
        module.release(files)
        model.set_submodule(name, made)
    if num_packed:
        use_own_threads()
    return num_packed


def matrix_of(codes: Codes, bias: Any = None) -> Matrix | None:
    """For the products; None for a shape that the products do not take."""
    is_plain = codes.offsets is None and codes.order is None and codes.scales.shape[1] == 1
    if codes.format == "int8" and is_plain:
        made = int8_matrix((codes.numbers.unpacked() ^ 128).view(torch.int8), codes.scales, bias)
        if made is not None:
            return made
    return codes_matrix(codes.format, codes.numbers, codes.values, codes.scales, codes.offsets, bias)
