"""`CheckpointFiles`: all that is read of a reward model's path before anything says what it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qserve.core.model_parts import Sizes
from qserve.core.nested import text_config
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.hub import cache
from qserve.hub.bounded import check_regular, read_index, read_json
from qserve.hub.folder import read_config, weight_files
from qserve.hub.revisions import split_revision
from qserve.hub.token_rows import rowless_tokens
from qserve.hub.weight_names import WHOLE
from qserve.reward.checkpoints.describe import StoredTensor
from qserve.reward.checkpoints.stored import PICKLED, SINGLE_FILES, stored_in_file

__all__ = ["AdapterConfig", "CheckpointFiles", "read_files"]

_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
# Heads that their trainers keep in a file of their own, beside a model or an adapter.
_HEAD_FILES = (
    "value_head.safetensors",
    "v_head.safetensors",
    "value_head.bin",
    "v_head.bin",
    "reward_head.safetensors",
)
_EMBEDDING = re.compile(r"^(.*?)(?:embed_tokens|wte)\.weight$")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")


@dataclass(frozen=True)
class AdapterConfig:
    """`base_model` as the adapter names it: a folder on the trainer's machine, or a hub id. `task_type`: peft's."""

    base_model: str | None
    task_type: str


@dataclass(frozen=True)
class CheckpointFiles:
    """What a path holds by its files and their headers: a whole model, or what belongs to `base`.

    Attributes:
        id: what the user wrote.
        path: the folder or file.
        base: folder of the base model, None where the path is complete in itself.
        adapter: of a peft adapter, which is to be merged into `base`.
        own: the tensors of the path itself.
        body: the tensors of the whole model: `own`, or of an adapter those of its base.
        config: config.json of the whole model.
        own_config: config.json of the path itself, empty without one.
        vocabulary: folder of the tokenizer, the path's own first.
        notes: for the user.
    """

    id: str
    path: Path
    base: Path | None
    adapter: AdapterConfig | None
    own: tuple[StoredTensor, ...] = field(repr=False)
    body: tuple[StoredTensor, ...] = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)
    own_config: Mapping[str, Any] = field(repr=False)
    vocabulary: Path | None
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part of `config`."""
        return text_config(self.config)

    @property
    def hidden_size(self) -> int:
        """Of the body; 0 where no config tells."""
        return Sizes(self.text, self.id)("hidden_size", 0, least=0)

    @property
    def body_prefix(self) -> str | None:
        """What stands before the body's own names: everything before its embedding's. None without an embedding."""
        return next((match[1] for tensor in self.body if (match := _EMBEDDING.match(tensor.name))), None)

    @property
    def pad_token_id(self) -> int | None:
        """By config.json. An adapter's own, where its trainer wrote one, goes before that of its base."""
        own = text_config(self.own_config)
        pad = (own if "pad_token_id" in own else self.text).get("pad_token_id")
        return pad if isinstance(pad, int) and not isinstance(pad, bool) else None

    @property
    def tokenizer(self) -> Path:
        """Folder with the tokenizer's files. Raises BrokenCheckpoint without one."""
        if self.vocabulary is None:
            raise BrokenCheckpoint(f"{self.id} has no tokenizer; name the folder that has it: --base FOLDER")
        return self.vocabulary

    @cached_property
    def tokens(self) -> Mapping[str, int]:
        """Ids of the tokens in tokenizer.json; empty where it can't be read. It has megabytes, and few ask."""
        file = self.tokenizer / "tokenizer.json"
        try:
            data = json.loads(file.read_text())
            vocabulary = data.get("model", {}).get("vocab", {})
            listed = vocabulary.items() if isinstance(vocabulary, dict) else ()
            tokens = {text: number for text, number in listed if type(number) is int}
            tokens.update({item["content"]: int(item["id"]) for item in data.get("added_tokens", ())})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        return tokens


def read_files(path: Path, base: str | None, model_id: str) -> CheckpointFiles:
    """What is at `path`: a folder, an adapter, or a single file with its `base` (--base) named. No weights are read.

    Raises ModelNotFound when nothing is there, BrokenCheckpoint for an adapter or a file without its base, and for
    what can't be read, UsageError for a base that a whole checkpoint has no need of.
    """
    if path.is_dir():
        check_regular(path)
    if path.is_file():
        found = _single_file(path, base)
    elif not path.is_dir():
        raise ModelNotFound(
            f"there is no reward model at {str(path)!r}: --reward takes a folder, a single file "
            f"({', '.join(SINGLE_FILES)}) with --base, a hub id, or demo"
        )
    elif (path / _ADAPTER_CONFIG).is_file() and not any((path / name).is_file() for name in WHOLE):
        found = _adapter(path, base)
    else:
        found = _whole(path, base)
    vocabulary = next((one for one in (path, found.base) if one is not None and _has_vocabulary(one)), None)
    own_config = read_config(path) if (path / "config.json").is_file() else {}
    if not own_config and found.base is None:
        raise BrokenCheckpoint(
            f"{path} has weights but no config.json, so nothing says which model they belong to; "
            "name the base model's folder: --base FOLDER"
        )
    has_config = bool(own_config) and found.adapter is None
    config = own_config if has_config else read_config(found.base or path)
    if has_config and found.base is not None and vocabulary == path:
        raise UsageError(
            f"--base {base}: {model_id} is a whole checkpoint, with config and tokenizer, and needs no base; "
            "leave --base out. It is for adapters, single files, and folders without config or tokenizer"
        )
    files = CheckpointFiles(
        model_id, path, found.base, found.adapter, found.own, found.body, config, own_config, vocabulary
    )
    held = weight_files(path).note if path.is_dir() and found.adapter is None else None
    rowless = None if vocabulary is None else rowless_tokens(vocabulary, files.text)
    notes = (held, None if rowless is None else str(rowless))
    return replace(files, notes=tuple(note for note in notes if note is not None))


@dataclass(frozen=True)
class _Weights:
    """The fields of `CheckpointFiles` that are called so."""

    own: tuple[StoredTensor, ...]
    body: tuple[StoredTensor, ...]
    base: Path | None
    adapter: AdapterConfig | None = None


def _single_file(path: Path, base: str | None) -> _Weights:
    if path.suffix not in SINGLE_FILES:
        raise BrokenCheckpoint(
            f"{path} is not a file of weights; a reward model's file ends in {', '.join(SINGLE_FILES)}"
        )
    if base is None:
        raise BrokenCheckpoint(
            f"{path} has weights, but no config.json or no tokenizer; name the base model's folder: --base FOLDER"
        )
    own = stored_in_file(path)
    return _Weights(own, own, _folder(base))


def _whole(path: Path, base: str | None) -> _Weights:
    own = _stored(path, _weights(path))
    if not own:
        raise BrokenCheckpoint(f"{path} has no weights (*.safetensors, pytorch_model*.bin, *.pt); copy it again")
    return _Weights(own, own, _folder(base) if base else None)


def _adapter(path: Path, base: str | None) -> _Weights:
    written = read_json(path / _ADAPTER_CONFIG)
    named = written.get("base_model_name_or_path")
    adapter = AdapterConfig(named if isinstance(named, str) else None, str(written.get("task_type") or ""))
    base_folder = _base_of(path, adapter, base)
    own = _stored(path, (path / name for name in _ADAPTER_FILES))
    body = _stored(base_folder, _weights(base_folder))
    return _Weights(own, body, base_folder, adapter)


def _has_vocabulary(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _VOCABULARIES)


def _folder(base: str) -> Path:
    folder = Path(base).expanduser()
    if not folder.is_dir():
        raise ModelNotFound(f"--base {str(folder)!r} is not a folder; it takes the base model's checkpoint folder")
    return folder


def _base_of(folder: Path, adapter: AdapterConfig, asked: str | None) -> Path:
    """The folder of the base model: the one asked for, or what the adapter names, here or in the local cache.

    Raises ModelNotFound, naming what the adapter was trained on.
    """
    for candidate in _candidates(folder, asked or adapter.base_model):
        if (candidate / "config.json").is_file():
            return candidate
    trained_on = f"it was trained on {adapter.base_model!r}" if adapter.base_model else "it names no base model"
    here = ", which is not on this machine" if adapter.base_model else ""
    looked = f", and --base {asked!r} has no config.json" if asked else here
    raise ModelNotFound(
        f"{folder} is an adapter without its base model: {trained_on}{looked}. "
        "Name the base model's folder: --base FOLDER"
    )


def _candidates(folder: Path, name: str | None) -> list[Path]:
    if not name:
        return []
    snapshot = None
    if "/" in name and not name.startswith((".", "/")):
        snapshot = cache.snapshot(*split_revision(name, "--base"))
    return [Path(name).expanduser(), folder / name, *([snapshot] if snapshot else [])]


def _stored(folder: Path, files: Iterator[Path]) -> tuple[StoredTensor, ...]:
    """Every tensor of `files`, and of heads in files of their own beside them.

    Raises BrokenCheckpoint for a missing shard or a damaged file.
    """
    every = (*files, *(folder / name for name in _HEAD_FILES))
    return tuple(tensor for file in dict.fromkeys(every) if file.is_file() for tensor in stored_in_file(file))


def _weights(folder: Path) -> Iterator[Path]:
    """The safetensors that the planner and the engines take; else what torch.save wrote."""
    index, single = folder / "pytorch_model.bin.index.json", folder / "pytorch_model.bin"
    for files in (
        weight_files(folder).read,
        _indexed(index) if index.is_file() else [single] if single.is_file() else [],
        sorted(folder.glob("pytorch_model*.bin")),
    ):
        if others := [file for file in files if file.name not in _ADAPTER_FILES + _HEAD_FILES]:
            yield from others
            return
    yield from sorted(file for suffix in PICKLED for file in folder.glob(f"*{suffix}") if _is_weights(file))


def _is_weights(file: Path) -> bool:
    """Trainers leave their arguments and optimizer states beside the weights."""
    return not any(word in file.name for word in ("training_args", "optimizer", "scheduler", "rng_state", "scaler"))


def _indexed(index: Path) -> list[Path]:
    names = read_index(index)
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise BrokenCheckpoint(
            f"{index.parent} lacks {len(missing)} of {len(names)} shards ({', '.join(missing[:3])}…); copy them again"
        )
    return [index.parent / name for name in names]
