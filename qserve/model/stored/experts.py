"""Experts of a checkpoint that is stored quantized: read one by one, joined as the products of a CPU take them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from qserve.errors import UsageError
from qserve.model.cpu.build import library
from qserve.model.cpu.experts import are_computed_as_ours, joined_experts
from qserve.model.mapped import MappedFiles
from qserve.model.stored.codes import Codes, Parts
from qserve.model.stored.layouts import ReadableLayers, StoredLayer
from qserve.model.stored.linear import Stored, codes_of, matrix_of

__all__ = ["StoredExperts", "StoredFiles", "are_experts", "expert_layers", "stored_experts_in"]

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


class StoredFiles:
    """Tensors of a folder's safetensors files by name, mapped: a page is read when something is computed with it."""

    def __init__(self, folder: Path) -> None:
        files: list[Any] = [safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))]
        self._by_name: dict[str, Any] = {name: file for file in files for name in file.keys()}  # noqa: SIM118 - it is no mapping
        self._mapped = MappedFiles(())
        self._folder = folder

    def parts(self, name: str, layer: StoredLayer) -> Parts:
        """The tensors of `layer`, which the file calls `name`."""
        return {end: self._by_name[f"{name}.{end}"].get_tensor(f"{name}.{end}") for end in layer.parts}

    def release(self, parts: Parts) -> None:
        """Give back the pages that were read of them."""
        if not all(self._mapped.holds(tensor) for tensor in parts.values()):
            self._mapped = MappedFiles.of(self._folder)
        for tensor in parts.values():
            self._mapped.release(tensor)


class StoredExperts(Stored):
    """In place of the library's module of a layer's experts while it loads all else; `compile_stored` replaces it.

    It has no tensors, so that the library reads none of the experts', of which a layer has hundreds.
    """

    def __init__(self, experts: Any, layers: Mapping[str, tuple[str, StoredLayer]], files: StoredFiles) -> None:
        """`layers` by "3.up_proj": the name in the file, and the layer."""
        super().__init__()
        self._layers, self._files = layers, files
        self._plain = (experts,)  # in a tuple it is no module of this one

    @torch.no_grad()
    def computing(self, dtype: torch.dtype) -> nn.Module:
        """See `Stored`: on our products, or the library's module."""
        if dtype == torch.bfloat16 and library() is not None and are_computed_as_ours(self._plain[0]):
            made = joined_experts(*([matrix_of(codes) for codes in self._codes(one)] for one in _PROJECTIONS))
            if made is not None:
                return made
        return self._unpacked(dtype)

    def _codes(self, projection: str) -> Iterator[Codes]:
        """Of each expert; its pages are given back before the next is read."""
        plain = self._plain[0]
        hidden, inner = plain.hidden_dim, plain.intermediate_dim
        shape = (hidden, inner) if projection == "down_proj" else (inner, hidden)
        for index in range(plain.num_experts):
            name, layer = self._layers[f"{index}.{projection}"]
            parts = self._files.parts(name, layer)
            yield codes_of(name, layer.codes, parts, shape)
            self._files.release(parts)

    def _unpacked(self, dtype: torch.dtype) -> nn.Module:
        plain: nn.Module = self._plain[0]
        gates, ups, downs = (torch.stack([one.dense(dtype) for one in self._codes(name)]) for name in _PROJECTIONS)
        plain.gate_up_proj = nn.Parameter(torch.cat([gates, ups], dim=1), requires_grad=False)
        plain.down_proj = nn.Parameter(downs, requires_grad=False)
        return plain

    def release(self, files: MappedFiles) -> None:
        """See `Stored`: they are given back expert by expert."""


def stored_experts_in(model: nn.Module, layers: ReadableLayers, folder: Path) -> dict[str, StoredExperts]:
    """What takes the place of `model`'s modules of experts that the file stores quantized. Raises UsageError."""
    found = expert_layers(model, layers)
    files = StoredFiles(folder) if found else None
    return {name: StoredExperts(module, known, files) for name, (module, known) in found.items() if files is not None}


def expert_layers(
    model: nn.Module, layers: ReadableLayers
) -> dict[str, tuple[nn.Module, dict[str, tuple[str, StoredLayer]]]]:
    """Modules of experts that the file stores quantized, with the layers of each by "3.up_proj". Raises UsageError."""
    found = {}
    for name, module in model.named_modules():
        if not are_experts(module):
            continue
        names = [f"{index}.{projection}" for index in range(module.num_experts) for projection in _PROJECTIONS]
        stored = {one: layers.find(f"{name}.{one}") for one in names}
        known = {one: entry for one, entry in stored.items() if entry is not None}
        if known and len(known) < len(stored):
            missing = next(one for one in names if one not in known)
            raise UsageError(
                f"{name} is stored quantized, except {name}.{missing} and {len(stored) - len(known) - 1} more of its "
                "weights; qserve reads the experts of a layer only where all of them are quantized"
            )
        if known:
            found[name] = module, known
    return found


def are_experts(module: Any) -> bool:
    """A module that joins a layer's experts, as the library has them: their sizes stand in these attributes."""
    sizes = ("num_experts", "hidden_dim", "intermediate_dim")
    return isinstance(getattr(module, "gate_up_proj", None), nn.Parameter) and all(
        hasattr(module, size) for size in sizes
    )
