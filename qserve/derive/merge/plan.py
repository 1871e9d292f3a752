"""`MergePlan`: which tensors the merged checkpoint has, its config.json, and what making it takes; no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qserve.core.families import FAMILIES
from qserve.core.nested import quantization_config, with_keys
from qserve.core.tensors import role_of
from qserve.derive.merge.adapter import Adapter
from qserve.derive.merge.changes import Changes, changes_of, plain_name
from qserve.derive.output import SHARD_BYTES
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.hub.bounded import read_json
from qserve.hub.folder import is_tied, read_config, weight_files
from qserve.hub.named import base_of as base_by_name
from qserve.hub.weight_names import HEADS
from qserve.planner.siblings import base_of
from qserve.reward.checkpoints import StoredTensor
from qserve.reward.checkpoints.stored import stored_in_file
from qserve.units import MIB

__all__ = ["MergePlan", "plan_merge"]

_RUNTIME_BYTES = 400 * MIB  # Python with torch
_FP32 = 4
_LM_HEAD = "lm_head.weight"
_OF_LABELS = ("id2label", "label2id", "num_labels", "problem_type", "pad_token_id")


@dataclass(frozen=True)
class MergePlan:
    """What is made of `adapter` and the model in `base`.

    Attributes:
        tensors: of the merged checkpoint, by name: where the base has each, or the adapter a new one.
        changes: which of them are not as the base has them.
        config: config.json of the merged checkpoint.
        is_reward: it gives scores of texts.
        head_files: heads in files of their own, which lie beside the weights.
    """

    adapter: Adapter
    base: Path
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    changes: Changes = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    is_reward: bool
    head_files: tuple[Path, ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each tensor."""
        return {name: one.nbytes for name, one in self.tensors.items()}

    @property
    def num_bytes(self) -> int:
        """Of the merged weights."""
        return sum(self.sizes.values())

    @property
    def memory_bytes(self) -> int:
        """Of RAM at most: a file's tensors twice while it is written, and a weight three times in fp32."""
        largest = max((math.prod(one.shape) for one in self.changes.low_rank.values()), default=0)
        return _RUNTIME_BYTES + 2 * min(self.num_bytes, SHARD_BYTES) + 3 * _FP32 * largest + self.adapter.num_bytes


def plan_merge(adapter: Adapter, base: Path, base_id: str) -> MergePlan:
    """The plan, by headers alone. `base_id`: as the user or the adapter names the base.

    Raises UsageError for a quantized base, BrokenCheckpoint where adapter and base do not belong together.
    """
    config = read_config(base)
    _check_whole(config, base_id)
    files = weight_files(base).read
    if not files:
        raise BrokenCheckpoint(f"{base} has no *.safetensors to merge into; fetch the safetensors version of {base_id}")
    stored = {one.name: one for file in files for one in stored_in_file(file)}
    tied_head = _tied_head(config, stored)
    changes = changes_of(adapter, stored | tied_head)
    heads = tuple(
        file for folder in (base, adapter.folder) for name in HEADS for file in sorted(folder.glob(f"{name}.*"))
    )
    has_head = changes.adds_head or any(role_of(plain_name(name)) == "head" for name in stored)
    if adapter.is_classifier and not has_head and not heads:
        raise BrokenCheckpoint(
            f"{adapter.folder} was trained for scores, and neither it nor its base has a head; it must be saved with "
            "the head: modules_to_save=['score'] of peft"
        )
    plan = MergePlan(adapter, base, stored, changes, config, has_head or bool(heads), heads)
    if changes.adds_head:
        return _as_classifier(plan)
    return _untied(plan, tied_head) if tied_head else plan


def _check_whole(config: Mapping[str, Any], base_id: str) -> None:
    """Codes of a quantized weight can't be added to."""
    if not quantization_config(config):
        return
    known = base_of(base_id) or base_by_name(base_id)
    instead = f"--into {known}" if known else "--into MODEL, the 16-bit model that it was made from"
    raise UsageError(
        f"{base_id} is quantized, and an adapter can't be merged into quantized weights exactly; merge it into the "
        f"16-bit model ({instead}), and quantize the result"
    )


def _tied_head(config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The head of a model whose head is its embedding, by name: an adapter may change one of the two."""
    embedding = next((one for name, one in stored.items() if role_of(name) == "embedding"), None)
    has_head = any(plain_name(name) == _LM_HEAD for name in stored)
    return {} if embedding is None or has_head or not is_tied(config) else {_LM_HEAD: embedding}


def _untied(plan: MergePlan, tied_head: Mapping[str, StoredTensor]) -> MergePlan:
    """With a head of its own where the adapter makes embedding and head differ."""
    embedding = next(iter(tied_head.values())).name
    if not {embedding, _LM_HEAD} & plan.changes.names or plan.adapter.config.get("ensure_weight_tying"):
        kept = {name: one for name, one in plan.changes.replaced.items() if name != _LM_HEAD}
        return replace(plan, changes=replace(plan.changes, replaced=kept))
    config = with_keys(plan.config, {"tie_word_embeddings": False})
    return replace(plan, tensors={**plan.tensors, **tied_head}, config=config)


def _as_classifier(plan: MergePlan) -> MergePlan:
    """A model that generates, with the adapter's head in place of its own."""
    added = plan.changes.added
    tensors = {name: one for name, one in plan.tensors.items() if plain_name(name) != _LM_HEAD}
    family = FAMILIES.get(str(plan.config.get("model_type")))
    config = {name: value for name, value in plan.config.items() if name != "architectures"}
    score = next((one for name, one in added.items() if name == "score.weight"), None)
    if score is not None and family is not None:
        config |= {"architectures": [f"{family.classes}ForSequenceClassification"], **_labels(plan, score.shape[0])}
    return replace(plan, tensors={**tensors, **added}, config=config)


def _labels(plan: MergePlan, num_labels: int) -> dict[str, Any]:
    """What the adapter's own config.json says of its labels, where its trainer wrote one; else numbered ones."""
    file = plan.adapter.folder / "config.json"
    written = read_json(file) if file.is_file() else {}
    names = {str(index): f"LABEL_{index}" for index in range(num_labels)}
    numbered = {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}
    return {**numbered, **{name: written[name] for name in _OF_LABELS if name in written}}
