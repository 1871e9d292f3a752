"""`Adapter`: a LoRA adapter of peft, as it lies on disk; what can't be merged exactly is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.hub.adapter import UNLIKE_LORA, changing_start
from qserve.hub.bounded import check_regular, read_json
from qserve.hub.weight_names import WHOLE
from qserve.reward.checkpoints import StoredTensor
from qserve.reward.checkpoints.stored import stored_in_file

__all__ = ["Adapter", "read_adapter"]

_CONFIG = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class Adapter:
    """What was trained, and on what.

    Attributes:
        folder: where it is.
        base: as the adapter names it: a folder on the trainer's machine, or a hub id.
        revision: of `base`, where the adapter names one.
        is_classifier: it was trained for scores of texts.
        config: adapter_config.json.
        tensors: by the names under which the adapter's file has them.
    """

    folder: Path
    base: str | None
    revision: str | None
    is_classifier: bool
    config: Mapping[str, Any] = field(repr=False)
    tensors: tuple[StoredTensor, ...] = field(repr=False)

    @property
    def num_bytes(self) -> int:
        return sum(one.nbytes for one in self.tensors)


def read_adapter(path: Path) -> Adapter:
    """The adapter at `path`, by its headers.

    Raises ModelNotFound where there is none, BrokenCheckpoint for files that are missing or damaged, UsageError for one
    that can't be merged exactly.
    """
    if not path.is_dir():
        raise ModelNotFound(f"there is no folder {str(path)!r}; qserve merge takes the folder of a LoRA adapter")
    check_regular(path)
    if not (path / _CONFIG).is_file():
        whole = any((path / name).is_file() for name in WHOLE)
        kind = "a whole model, which needs no merging" if whole else f"no adapter: it has no {_CONFIG}"
        raise ModelNotFound(f"{path} is {kind}; qserve merge takes the folder that peft's save_pretrained wrote")
    config = read_json(path / _CONFIG)
    _check_exact(path, config)
    file = next((path / name for name in _FILES if (path / name).is_file()), None)
    if file is None:
        raise BrokenCheckpoint(f"{path} has {_CONFIG} and no weights ({' or '.join(_FILES)}); copy it again")
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    return Adapter(
        path,
        named if isinstance(named, str) and named else None,
        revision if isinstance(revision, str) and revision else None,
        "CLS" in str(config.get("task_type") or ""),
        config,
        stored_in_file(file),
    )


def _check_exact(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if str(kind).upper() != "LORA":
        raise UsageError(f"{path} is an adapter of the kind {kind}; LoRA (and DoRA) can be merged")
    for key, words in UNLIKE_LORA.items():
        if config.get(key):
            raise UsageError(
                f"{path} can't be merged exactly: it has {words} ({key}); merge it with the trainer that made it, or "
                "serve it beside its base"
            )
    if (start := changing_start(config)) is not None:
        raise UsageError(
            f"{path} can't be merged into its base: it began with init_lora_weights={start!r}, which changes the "
            "base's weights; save it again with peft's path_initial_model_for_weight_conversion, which makes it a "
            "plain LoRA"
        )
