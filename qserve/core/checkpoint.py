"""A checkpoint, found: where it is, what it is, and its tensors where their headers could be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qserve.core.dimensions import num_parameters, tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.core.nested import in_text_config, text_config, text_keys, with_text_config
from qserve.core.rope import completed_rope
from qserve.core.tensors import Tensor, compact
from qserve.errors import BrokenCheckpoint, UsageError

__all__ = ["SENTENCE_TRANSFORMERS", "Checkpoint"]


SENTENCE_TRANSFORMERS = "modules.json"
"""The file that says which layers follow the body of an embedding model."""
_ROPES = {"rope_parameters", "rope_scaling"}


@dataclass(frozen=True)
class Checkpoint:
    """What `qserve.hub.resolve` found.

    `folder` is None when nothing is on disk (a hub id planned from its header bytes or from bundled dimensions).
    `tensors` is None when no header could be read: then the dimensions count. `messages` are for the user:
    what an alias resolved to, that figures come from dimensions. `revision` is the hub's commit that it was read at, or
    what was asked for where the hub named no commit; None of a folder, and of bundled dimensions. `asked` is the id
    with the revision that the user named behind it, and empty where none was named.

    Where only the name tells how the weights are packed, `guess` says so, with the way to exact figures. The checkpoint
    is then the largest that the name can mean, `lighter` the smallest (None: it can mean one), and `layout` says in
    words what each of the two leaves unpacked. `packed_word`: what the name says of a packing that is not known; the
    16-bit model then stands for it.
    """

    id: str
    folder: Path | None
    config: Mapping[str, Any] = field(repr=False)
    spec: ModelSpec
    tensors: tuple[Tensor, ...] | None = field(default=None, repr=False)
    messages: tuple[str, ...] = ()
    revision: str | None = None
    asked: str = ""
    guess: str = ""
    layout: str = ""
    lighter: Checkpoint | None = None
    packed_word: str = ""

    def overridden(self, keys: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint with keys of its config.json replaced (--hf-overrides): what they say of its positions."""
        if not keys:
            return self
        given = text_keys(keys)
        text = completed_rope(text_config(self.config), given)
        try:
            spec = ModelSpec.from_config(with_text_config(self.config, text), self.id)
        except BrokenCheckpoint as error:
            raise UsageError(f"--hf-overrides {json.dumps(keys)}: {error}") from error
        if spec.rope.kind == "yarn" and _ROPES & set(given) and "max_position_embeddings" not in given:
            # vLLM from 0.30 on and transformers want the stretched length beside the factor that says it.
            stretched = {"rope_parameters": spec.rope.told(text["rope_parameters"])}
            text |= {**stretched, "max_position_embeddings": spec.rope.reach}
        config = with_text_config(self.config, text)
        spec = ModelSpec.from_config(config, self.id)
        if _placed_as(ModelSpec.from_config(self.config, self.id), spec) != spec:
            raise UsageError(
                f"--hf-overrides {json.dumps(keys)} needs other weights than the checkpoint of {self.id} has; only "
                "keys of its positions and rope can be replaced"
            )
        return replace(self, config=config, spec=_placed_as(self.spec, spec))

    def override_of(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """What an engine is to be told, of a checkpoint that is `overridden` by `keys`: a rope is told whole."""
        if not keys:
            return {}
        text = text_config(self.config)
        names = {"rope_parameters" if name == "rope_scaling" else name for name in text_keys(keys)}
        names |= {"max_position_embeddings"} if self.spec.rope.kind == "yarn" and names & _ROPES else set()
        told = {name: text[name] for name in sorted(names)}  # a command that is printed is the same each time
        if "rope_parameters" in told:
            told["rope_parameters"] = self.spec.rope.told(told["rope_parameters"])
        return in_text_config(self.config, told)

    @property
    def name(self) -> str:
        """What a command calls the same weights: the id, at the revision that was asked for."""
        return self.asked or self.id

    @property
    def pin(self) -> tuple[str, ...]:
        """For the user, at which revision it was read; nothing of one without."""
        return () if self.revision is None else (f"{self.id} is read at revision {self.revision}",)

    @property
    def told(self) -> tuple[str, ...]:
        """For the user, of a plan that has no place of its own for a guess: that it is one, messages, the revision."""
        return (*filter(None, (self.guess,)), *self.messages, *self.pin)

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


def _placed_as(spec: ModelSpec, other: ModelSpec) -> ModelSpec:
    """`spec` with the positions and the rope of `other`."""
    return replace(spec, max_position_embeddings=other.max_position_embeddings, rope=other.rope)
