"""Linear layers whose bf16 weights lie in memory as a CPU's matrix kernels read them.

A plain `nn.Linear` in bf16 has oneDNN repack its weight, or read it in an order that wastes bandwidth, at every call.
Packed once at loading, the layers of a Qwen3-0.6B shape take 1.6 times less for 8 rows (bench/packed_linear.py,
docs/results/throughput.md). The values are the same; sums may round differently in the
last bit, as they do whenever the number of rows in a batch changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

__all__ = ["PackedLinear", "pack_linears"]

# Below this a model stays in the caches, and there is nothing to gain.
_WORTH_PACKING_BYTES = 64 * 1024**2
# Rows that the layout is made for; other numbers work as well.
_TYPICAL_ROWS = 8


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
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return result

    def extra_repr(self) -> str:
        """Shown where the model is printed."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def pack_linears(model: Any) -> int:
    """Replace, in place, the linear layers for which it pays; returns how many.

    Nothing is packed on other devices than a CPU, in other dtypes than bf16, under accelerate's offloading hooks, where
    the CPU lacks the kernels, or in a small model. A head that shares its weight with the embedding stays as it is:
    packing would keep the weight twice.
    """
    parameters = list(model.parameters())
    if any(p.device.type != "cpu" or p.dtype != torch.bfloat16 for p in parameters):
        return 0
    if sum(p.nbytes for p in parameters) < _WORTH_PACKING_BYTES or any(hasattr(m, "_hf_hook") for m in model.modules()):
        return 0
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return 0
    embedding = model.get_input_embeddings().weight
    num_packed = 0
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear and child.weight is not embedding:
                setattr(parent, name, PackedLinear(child))
                num_packed += 1
    # What is left still lies in the mapping of the checkpoint's file and would keep all of it resident.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return num_packed
