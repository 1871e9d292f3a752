"""What an adapter changes in its base, tensor by tensor, by their names and shapes alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from qserve.core.tensors import role_of
from qserve.derive.merge.adapter import Adapter
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.reward.checkpoints import StoredTensor

__all__ = ["Changes", "LowRank", "changes_of", "plain_name"]

_PEFT = "base_model.model."
# The ways to nest a language model; what is left names a module whichever class the adapter was trained in.
_NESTING = re.compile(r"^(?:thinker\.)?(?:model\.)?(?:language_model\.)?(?:model\.)?")
_FACTOR = re.compile(r"^(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
                     r"(?:\.weight)?$")  # fmt: skip
_SAVED = re.compile(r"\.modules_to_save(?:\.\w+)?(?=\.)|\.base_layer(?=\.)")


@dataclass(frozen=True)
class LowRank:
    """One weight's factors, as the adapter's file has them: a [rank, in], b [out, rank], of an embedding transposed.

    `magnitude` is DoRA's, of each row.
    """

    module: str
    a: StoredTensor
    b: StoredTensor
    magnitude: StoredTensor | None = None
    is_embedding: bool = False

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight."""
        rows, columns = self.b.shape[0], self.a.shape[1]
        return (columns, rows) if self.is_embedding else (rows, columns)


@dataclass(frozen=True)
class Changes:
    """By the names under which the base has them: weights with factors, tensors in place of its own, and new ones."""

    low_rank: Mapping[str, LowRank]
    replaced: Mapping[str, StoredTensor] = field(default_factory=dict)
    added: Mapping[str, StoredTensor] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Of all that is not as the base has it."""
        return frozenset((*self.low_rank, *self.replaced, *self.added))

    @property
    def adds_head(self) -> bool:
        """Whether it makes a classifier of a model that generates."""
        return any(role_of(name) == "head" for name in self.added)


def plain_name(name: str) -> str:
    """A tensor's name without what nests the language model: layers.0.self_attn.q_proj.weight."""
    return _NESTING.sub("", name, count=1)


def changes_of(adapter: Adapter, base: Mapping[str, StoredTensor]) -> Changes:
    """What `adapter` changes in a model that has these tensors by these names.

    Raises BrokenCheckpoint where it is of another model or incomplete, UsageError for what is not known to merge.
    """
    stored = {plain_name(name): (name, tensor) for name, tensor in base.items()}
    factors: dict[str, dict[str, StoredTensor]] = {}
    whole: dict[str, StoredTensor] = {}
    for tensor in adapter.tensors:
        name = tensor.name.removeprefix(_PEFT)
        if match := _FACTOR.match(name):
            factors.setdefault(_SAVED.sub("", match["module"]), {})[match["kind"]] = tensor
        elif "lora_" in name or "token_adapter" in name:
            raise UsageError(f"{adapter.folder} has {tensor.name}, which qserve does not know how to merge")
        else:
            whole[plain_name(_SAVED.sub("", name))] = tensor
    low_rank = {}
    for module, parts in factors.items():
        found = _low_rank(adapter, module, parts)
        low_rank[_target(adapter, stored, plain_name(f"{module}.weight"), found.shape)] = found
    replaced, added = {}, {}
    for name, tensor in whole.items():
        if name in stored or role_of(name) != "head":
            replaced[_target(adapter, stored, name, tensor.shape)] = tensor
        else:
            added[name] = tensor
    if not low_rank and not replaced and not added:
        raise BrokenCheckpoint(f"{adapter.folder} holds no weights; copy it again")
    return Changes(low_rank, replaced, added)


def _low_rank(adapter: Adapter, module: str, parts: Mapping[str, StoredTensor]) -> LowRank:
    is_embedding = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    names = ("lora_embedding_A", "lora_embedding_B") if is_embedding else ("lora_A", "lora_B")
    missing = [name for name in names if name not in parts]
    if missing:
        raise BrokenCheckpoint(f"{adapter.folder} has no {missing[0]} of {module}; copy it again")
    a, b = (parts[name] for name in names)
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1]:
        raise BrokenCheckpoint(
            f"{adapter.folder} has factors of {module} that do not belong together: {list(a.shape)} and {list(b.shape)}"
        )
    magnitude = parts.get("lora_magnitude_vector")
    if magnitude is not None and is_embedding:
        raise UsageError(f"{adapter.folder} has DoRA of the embedding, which qserve does not know how to merge")
    return LowRank(module, a, b, magnitude, is_embedding)


def _target(adapter: Adapter, stored: Mapping[str, tuple[str, StoredTensor]], name: str, shape: tuple[int, ...]) -> str:
    """The name under which the base has it. Raises BrokenCheckpoint where it has none of that name and shape."""
    written, found = stored.get(name, (name, None))
    trained_on = f"it was trained on {adapter.base!r}" if adapter.base else "it names no base"
    if found is None:
        raise BrokenCheckpoint(
            f"{adapter.folder} adapts {name}, which the base does not have; is --into the model that it was trained "
            f"on? ({trained_on})"
        )
    if found.shape != shape:
        raise BrokenCheckpoint(
            f"{adapter.folder} is for a {name} of {list(shape)}, and the base's is {list(found.shape)}; is --into the "
            f"model that it was trained on? ({trained_on})"
        )
    return written
