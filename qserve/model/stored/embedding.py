"""Embeddings that stay in the checkpoint's file: a step reads a few rows, so the table need not be in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from qserve.core.tensors import role_of

__all__ = ["MappedEmbedding", "has_one_dtype", "map_embedding"]

_SIXTEEN_BIT = (torch.bfloat16, torch.float16)


class MappedEmbedding(nn.Module):
    """Looks rows up in the checkpoint's file, of 16 bit, and gives them in bf16.

    The weight is not a parameter: nothing copies it out of the file, and it does not count as held. `is_tied`: the head
    has the same, packed.
    """

    def __init__(self, weight: torch.Tensor, *, is_tied: bool = False) -> None:
        super().__init__()
        self.weight, self.is_tied = weight, is_tied

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` [...] to [..., width]."""
        return nn.functional.embedding(ids, self.weight).to(torch.bfloat16)


def map_embedding(model: Any, folder: Path) -> None:
    """Read the rows of an embedding in `folder`'s files, where the head has a weight of its own.

    Nothing changes under accelerate's hooks, on other devices than a CPU, and in other dtypes than bf16.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if type(embedding) is not nn.Embedding or getattr(head, "weight", None) is embedding.weight:
        return
    if hasattr(embedding, "_hf_hook") or embedding.weight.device.type != "cpu" or not has_one_dtype(model):
        return
    stored = _stored_embedding(folder)
    if stored is not None and stored.shape == embedding.weight.shape and stored.dtype in _SIXTEEN_BIT:
        model.set_input_embeddings(MappedEmbedding(stored))


def has_one_dtype(model: nn.Module) -> bool:
    """Whether all is bf16: the library takes a model's dtype from its first parameter, which is the embedding."""
    return all(parameter.dtype == torch.bfloat16 for parameter in model.parameters())


def _stored_embedding(folder: Path) -> torch.Tensor | None:
    for path in sorted(folder.glob("*.safetensors")):
        file: Any = safe_open(path, framework="pt")
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            if role_of(name) == "embedding":
                found: torch.Tensor = file.get_tensor(name)
                return found
    return None
