"""Linear layers whose weights lie in memory as a CPU's matrix kernels read them: our own products', or oneDNN's.

A plain `nn.Linear` in bf16 has oneDNN repack its weight, or read it in an order that wastes bandwidth, at every call.
Packed once at loading, the layers of a Qwen3-0.6B shape take 1.6 times less for 8 rows (bench/packed_linear.py,
docs/results/throughput.md). The values are the same; sums may round differently in the last bit, as they do whenever
the number of rows in a batch changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from qserve.core.shortlist import has_shortlist
from qserve.model.cpu.build import library
from qserve.model.cpu.experts import CompiledExperts, Quantize, compiled_experts_from, quantized_experts_from
from qserve.model.cpu.linear import CompiledLinear, compiled_from, takes_bfloat16
from qserve.model.cpu.matrix import use_own_threads
from qserve.model.cpu.padded_rows import with_padded_rows
from qserve.model.cpu.quantized_loading import ToQuantize, quantized_from
from qserve.model.cpu.shortlist import ShortlistHead
from qserve.model.mapped import MappedFiles
from qserve.model.stored.embedding import MappedEmbedding, has_one_dtype

__all__ = ["PackedLinear", "compile_quantized", "pack_linears", "set_tied_head"]

# Below this a model stays in the caches, and oneDNN has nothing to gain.
_WORTH_PACKING_BYTES = 64 * 1024**2
# Rows that the layout is made for; other numbers work as well.
_TYPICAL_ROWS = 8
_NO_FILES = MappedFiles(())


class PackedLinear(nn.Module):
    """A bias or none, and a weight that only oneDNN can read. Inference only.

    Attributes:
        weight_bytes: size of the weight before it was packed; the packed one is opaque.

    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight_bytes = linear.weight.nbytes
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, _TYPICAL_ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., in_features] to [..., out_features]."""
        return with_padded_rows(self._product, x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        """Shown where the model is printed."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def compile_quantized(
    model: Any, quantize: Quantize | None = None, otherwise: Callable[[nn.Linear], nn.Module] | None = None
) -> int:
    """Replace, in place, quantized layers by ones that compute by our own products; returns how many.

    `quantize`: what becomes of layers that are marked for it and of experts, where they are in 16 bit still; None: they
    stay so. `otherwise`: what takes the place of such a layer whose shape the products do not take.

    Nothing is replaced on other devices than a CPU, under accelerate's hooks, in a model that computes in another dtype
    than bf16, and without the compiled library.
    """
    embedding = model.get_input_embeddings().weight
    tensors = (*model.parameters(), *model.buffers())
    if embedding.dtype != torch.bfloat16 or any(tensor.device.type != "cpu" for tensor in tensors):
        return 0
    if library() is None or any(hasattr(m, "_hf_hook") for m in model.modules()):
        return 0

    def compiled(child: nn.Module) -> nn.Module | None:
        if quantize is not None and isinstance(child, ToQuantize):
            return quantized_from(child, quantize) or (None if otherwise is None else otherwise(child))
        experts = None if quantize is None else quantized_experts_from(child, quantize)
        return experts or (None if type(child) is nn.Linear else compiled_from(child))

    num_compiled = _replace(model, compiled)
    if any(isinstance(module, CompiledLinear) for module in model.modules()):
        use_own_threads()
    return num_compiled


def pack_linears(model: Any, files: MappedFiles = _NO_FILES) -> int:
    """Replace, in place, the 16-bit linear layers and experts for which it pays; returns how many.

    Each is packed and let go before the next, its pages in `files` too. Nothing is packed on other devices than a CPU,
    in other dtypes than bf16, under accelerate's offloading hooks, where the CPU lacks the kernels, or in a small
    model. A head that shares its weight with the embedding is packed where the embedding can stay in its file;
    elsewhere packing would keep the weight twice.
    """
    parameters = list(model.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters):
        return 0
    if any(hasattr(m, "_hf_hook") for m in model.modules()):
        return 0
    is_small = _held_bytes(model) < _WORTH_PACKING_BYTES
    if not takes_bfloat16() and (is_small or not torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return 0
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()

    def packed(child: nn.Module) -> nn.Module | None:
        if (experts := compiled_experts_from(child)) is not None:
            return experts
        if type(child) is not nn.Linear or child.weight.dtype != torch.bfloat16 or child.weight is embedding:
            return None
        made = _packed_head(child) if child is head else _packed(child)
        files.release(child.weight)
        return made

    num_packed = int(_pack_tied_head(model, files)) + _replace(model, packed)
    if any(type(module) is CompiledLinear for module in model.modules()):
        use_own_threads()
    return num_packed


def _packed(linear: nn.Linear) -> nn.Module:
    return compiled_from(linear) or PackedLinear(linear)


def _packed_head(linear: nn.Linear) -> nn.Module:
    made = _packed(linear)
    if not has_shortlist(linear.out_features, linear.in_features) or not isinstance(made, CompiledLinear):
        return made
    return ShortlistHead.of(made.matrix, linear.weight.data) or made


def _held_bytes(model: nn.Module) -> int:
    compiled = (module.matrix.code_bytes for module in model.modules() if isinstance(module, CompiledLinear))
    experts = (one.code_bytes for m in model.modules() if isinstance(m, CompiledExperts) for one in m.matrices)
    return sum(parameter.nbytes for parameter in model.parameters()) + sum(compiled) + sum(experts)


def _replace(model: nn.Module, replacement: Callable[[nn.Module], nn.Module | None]) -> int:
    """Put what `replacement` makes of a module in its place, one after the other; how many.

    Nothing here holds on to a module that was replaced: its weights are gone before the next are made.
    """
    num_replaced = 0
    for name in [name for name, _ in model.named_children()]:
        made = replacement(getattr(model, name))
        if made is not None:
            setattr(model, name, made)
            num_replaced += 1
        else:
            num_replaced += _replace(getattr(model, name), replacement)
    return num_replaced


def _pack_tied_head(model: Any, files: MappedFiles) -> bool:
    """Pack a head that shares the embedding's weight, and leave the embedding in the file; whether that was done."""
    head, weight = model.get_output_embeddings(), model.get_input_embeddings().weight
    if type(head) is not nn.Linear or head.weight is not weight or not files.holds(weight) or not has_one_dtype(model):
        return False
    set_tied_head(model, _packed_head(head), files)
    return True


def set_tied_head(model: Any, head: nn.Module, files: MappedFiles) -> None:
    """`head` takes the place of the one that shares its weight with the embedding, which is in `files` and stays."""
    weight = model.get_input_embeddings().weight
    model.set_output_embeddings(head)
    model.set_input_embeddings(MappedEmbedding(weight.data, is_tied=True))
    files.release(weight.data)
