"""A start that maps packed weights where they were kept, and keeps them where they were not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from qserve.core.schemes import SCHEMES
from qserve.model.cpu.build import library
from qserve.model.packed_cache.folder import PackedFolder
from qserve.model.packed_cache.identity import packed_key
from qserve.model.packed_cache.layers import (
    Layers,
    Packed,
    described,
    num_packed_bytes,
    other_tensors,
    packed_layers,
    rebuilt,
)
from qserve.model.packed_cache.placing import Misplaced, placed
from qserve.model.stored.embedding import MappedEmbedding
from qserve.planner.plan import Plan
from qserve.units import MIB

__all__ = ["PackedStart", "packed_start"]

# Less is quantized and packed within a second.
_WORTH_KEEPING_BYTES = 32 * MIB


def packed_start(checkpoint: Path, plan: Plan, folder: PackedFolder | None, part: str = "model") -> PackedStart | None:
    """None where nothing is kept: switched off, not on a CPU, not quantized, not from safetensors, or without products
    of our own.

    16-bit weights are packed in seconds, and kept they would take the disk twice. `part`: what of the checkpoint is
    loaded, its body or all of it.
    """
    if folder is None or folder.most_bytes <= 0 or plan.placement.device_map != "cpu" or library() is None:
        return None
    if plan.dtype != "bfloat16" or SCHEMES[plan.quant.scheme].bits >= 16 or not any(checkpoint.glob("*.safetensors")):
        return None
    return PackedStart(folder, packed_key(checkpoint, plan, part))


@dataclass(frozen=True)
class PackedStart:
    """The packed form of one checkpoint, as one plan loads it."""

    folder: PackedFolder
    key: str

    def load(
        self, made: Callable[[], nn.Module], around: Callable[[Layers, str | None], nn.Module]
    ) -> tuple[nn.Module, tuple[str, ...]]:
        """The model, and notes for the user.

        Args:
            made: from the checkpoint alone; takes long.
            around: the rest of the model around packed layers; of these the one that is named shares its weight with
                the embedding, which is read where it lies in the checkpoint. Raises Misplaced.

        """
        model = self._mapped(around)
        if model is None:
            with self.folder.locked(self.key):
                model = self._mapped(around)  # another process may have made it meanwhile
                if model is None:
                    model = made()
                    return model, self._keep(model)
        return model, ()

    def _mapped(self, around: Callable[[Layers, str | None], nn.Module]) -> nn.Module | None:
        found = self.folder.find(self.key)
        if found is None:
            return None
        try:
            model = around(_rebuilt(found.about, found.tensors), found.about["tied_head"])
            if other_tensors(model) != found.about["others"]:
                raise Misplaced("the weights that are not packed have changed")
        except (Misplaced, KeyError) as error:
            self.folder.remove(self.key, str(error))
            return None
        return model

    def _keep(self, model: nn.Module) -> tuple[str, ...]:
        """Write the layers of `model`, and have it read the file from now on: its pages are every process's."""
        if num_packed_bytes(model) < _WORTH_KEEPING_BYTES:
            return ()
        layers, tensors = described(packed_layers(model))
        about = {"layers": layers, "tied_head": _tied_head(model), "others": other_tensors(model)}
        why = self.folder.write(self.key, about, tensors)
        if why is not None:
            return (
                f"packed weights are not kept, so the next start takes as long as this one: {why} "
                "(--packed-cache-gib sets how much may be kept; 0 keeps nothing)",
            )
        del tensors
        found = self.folder.find(self.key, is_new=True)
        if found is not None:
            placed(model, _rebuilt(found.about, found.tensors))
        return ()


def _rebuilt(about: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Packed]:
    return {name: rebuilt(name, one, tensors) for name, one in about["layers"].items()}


def _tied_head(model: Any) -> str | None:
    """One that oneDNN packed is none of these layers: it is packed again, from the embedding."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(embedding, MappedEmbedding) or not embedding.is_tied or not isinstance(head, Packed):
        return None
    return next(str(name) for name, module in model.named_modules() if module is head)
