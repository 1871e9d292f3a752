"""A checkpoint, found: where it is, what it is, and its tensors where their headers could be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qserve.core.dimensions import num_parameters, tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor, compact

__all__ = ["Checkpoint"]


def merged(own: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`own` with the keys of `over`; objects are merged key by key, as vLLM merges its hf_overrides."""
    both = {key: merged(own[key], value) for key, value in over.items() if _are_objects(own.get(key), value)}
    return {**own, **over, **both}


def _are_objects(one: Any, other: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(other, Mapping)


@dataclass(frozen=True)
class Checkpoint:
    """What `qserve.hub.resolve` found.

    `folder` is None when nothing is on disk (a hub id planned from its header bytes or from bundled dimensions).
    `tensors` is None when no header could be read: then the dimensions count. `messages` are for the user:
    what an alias resolved to, that figures come from dimensions.
    """

    id: str
    folder: Path | None
    config: Mapping[str, Any] = field(repr=False)
    spec: ModelSpec
    tensors: tuple[Tensor, ...] | None = field(default=None, repr=False)
    messages: tuple[str, ...] = ()

    def overridden(self, keys: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint with keys of its config.json replaced (--hf-overrides): what they say of its positions."""
        if not keys:
            return self
        config = merged(self.config, keys)
        positions = ModelSpec.from_config(config, self.id).max_position_embeddings
        return replace(self, config=config, spec=replace(self.spec, max_position_embeddings=positions))

    @cached_property
    def counted_tensors(self) -> tuple[Tensor, ...]:
        """Header tensors where there are some, else those of the dimensions; equal ones told once, with `repeat`."""
        return compact(self.tensors) if self.tensors is not None else tensors_of(self.spec)

    @cached_property
    def parameters(self) -> int:
        """Logical parameters: of a packed checkpoint the dimensions know them, not the packed tensors."""
        if self.tensors is None or self.spec.quantization is not None:
            return num_parameters(self.spec)
        return sum(tensor.num_elements for tensor in self.tensors)
