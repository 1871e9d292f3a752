"""A checkpoint folder: which files are its weights, and what was read of it. Whatever is wrong has its message.

Where a folder holds more than one set of weights, the planner and each engine take the same (`weight_names`).
Left to themselves the engines choose differently: transformers takes model.safetensors before an index and puts an
adapter that lies beside on the model that the adapter names; vLLM takes consolidated*.safetensors before all, and
without an index every *.safetensors. They are given a folder of links to what is read (`served_folder.clean_folder`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qserve.core.model_spec import ModelSpec
from qserve.core.nested import parts_config, text_config, with_keys
from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub import cache
from qserve.hub.bounded import check_count, check_regular, read_header, read_index, read_json
from qserve.hub.guessed import NamedLayouts
from qserve.hub.token_rows import rowless_tokens
from qserve.hub.weight_names import ADAPTER, INDEX, PICKLED, are_weights, loaded_names

__all__ = [
    "ReadCheckpoint",
    "WeightFiles",
    "is_tied",
    "own_config",
    "read_config",
    "read_folder",
    "read_headers",
    "read_snapshot",
    "read_tensors",
    "weight_files",
]

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_SAMPLES, _SAMPLE_BYTES = 64, 4096


Headers = dict[Path, tuple[Tensor, ...]]


@dataclass(frozen=True)
class ReadCheckpoint:
    """What was read of a checkpoint, wherever it is.

    Attributes:
        folder: where all of it is on this machine, else None.
        config: config.json, as the weights have it.
        tensors: of the weights, by their headers; None where there are none to read.
        notes: for the user.
        revision: the commit of the hub that it was read at, or what was asked for where the hub names none; None of
            what is not from there.
        packed_word: what the name says of a packing that is not known, where the config is the 16-bit model's.
        by_name: the base and the layouts that the name can mean, where the config is the first of these; else None.
    """

    folder: Path | None
    config: Mapping[str, Any] = field(repr=False)
    tensors: tuple[Tensor, ...] | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    revision: str | None = None
    by_name: NamedLayouts | None = None
    packed_word: str = ""


@dataclass(frozen=True)
class WeightFiles:
    """`read` are the safetensors files that are the weights; `left_out` is what also looks like weights, by name.

    `has_adapter`: a peft adapter lies beside weights that are whole without it.
    """

    read: tuple[Path, ...]
    left_out: tuple[str, ...] = ()
    has_adapter: bool = False

    @property
    def note(self) -> str | None:
        """For the user, where something is left out."""
        if not self.left_out:
            return None
        names = ", ".join(self.left_out[:4]) + (f" and {len(self.left_out) - 4} more" if len(self.left_out) > 4 else "")
        folder = self.read[0].parent
        read = self.read[0].name if len(self.read) == 1 else f"the {len(self.read)} files of {self.read[0].name}"
        adapter = (
            "; the weights are taken as merged: to serve an adapter that is not merged, put it into another folder"
            if self.has_adapter
            else ""
        )
        return f"{folder} has more than one set of weights: {read} is read, left out are {names}{adapter}"


def read_folder(path: Path, model_id: str) -> ReadCheckpoint:
    """The checkpoint at `path`, called `model_id`. Told are files that look like weights and are not read, and a
    config.json that says other than they hold.

    Raises ModelNotFound without config.json, BrokenCheckpoint or UnknownArchitecture.
    """
    config = read_config(path)
    ModelSpec.from_config(config, model_id)  # what is wrong with it is told before the files are
    files = weight_files(path)
    headers = read_headers(path, files)
    return replace(_as_served(path, config, files, headers), revision=cache.commit_of(path))


def read_snapshot(model_id: str, revision: str | None = None) -> ReadCheckpoint | None:
    """`model_id` at a revision (None: main) from the local cache; None where it was never fetched.

    One without all of its weights is usual (a config was looked at): its dimensions count.
    """
    snapshot = cache.snapshot(model_id, revision)
    if snapshot is None or not (snapshot / "config.json").is_file():
        return None
    config = read_config(snapshot)
    try:
        files = weight_files(snapshot)
        headers = read_headers(snapshot, files)
    except BrokenCheckpoint:
        headers = {}
    commit = snapshot.name
    if headers:
        return replace(_as_served(snapshot, config, files, headers), revision=commit)
    note = f"the local cache of {model_id} is incomplete: planned from the dimensions of its config.json"
    return ReadCheckpoint(None, config, None, (note,), commit)


def _as_served(path: Path, config: Mapping[str, Any], files: WeightFiles, headers: Headers) -> ReadCheckpoint:
    none = None if headers else f"{path} has no *.safetensors: planned from the dimensions of its config.json"
    tensors = tuple(tensor for header in headers.values() for tensor in header) if headers else None
    config, untied = own_config(path, config, headers)
    rowless = rowless_tokens(path, config)
    found = (none, files.note, untied, None if rowless is None else str(rowless))
    return ReadCheckpoint(path, config, tensors, tuple(note for note in found if note is not None))


def read_config(path: Path) -> dict[str, Any]:
    """config.json as a dict. Raises ModelNotFound without one, BrokenCheckpoint for damaged JSON."""
    file = path / "config.json"
    if not file.is_file():
        raise ModelNotFound(f"the folder {path} has no config.json; --model takes a Hugging Face checkpoint folder")
    check_regular(path)
    return read_json(file)


def read_tensors(path: Path) -> tuple[Tensor, ...] | None:
    """Every tensor of the folder's weights (`weight_files`), from their headers alone; None where there are none.

    Raises BrokenCheckpoint for a missing shard, a truncated file or a damaged header.
    """
    headers = read_headers(path, weight_files(path))
    return tuple(tensor for header in headers.values() for tensor in header) if headers else None


def read_headers(folder: Path, files: WeightFiles) -> Headers:
    """The tensors of each file that is read, in the files' order. Raises BrokenCheckpoint for one that is damaged."""
    headers: Headers = {}
    num_tensors = 0
    for file in files.read:
        headers[file] = read_header(file)
        num_tensors += len(headers[file])
        check_count(num_tensors, str(folder))
    return headers


def weight_files(folder: Path) -> WeightFiles:
    """Those of `folder`. Raises BrokenCheckpoint for a missing shard, and for an adapter without a model."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    read = _read(folder, names)
    is_whole = bool(read) or any(name in names for name in PICKLED)
    has_adapter = ADAPTER[0] in names
    if has_adapter and not is_whole:
        raise BrokenCheckpoint(
            f"{folder} has a peft adapter ({ADAPTER[0]}) and no model: give the folder of the model that it was "
            "trained on, or merge it into that one"
        )
    others = [name for name in names if name not in read and are_weights(name)] if read else []
    return WeightFiles(tuple(folder / name for name in read), (*others, *_below(folder, names, read)), has_adapter)


def _read(folder: Path, names: list[str]) -> list[str]:
    shards = read_index(folder / INDEX) if INDEX in names else []
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise BrokenCheckpoint(
            f"{folder} lacks {len(missing)} of {len(shards)} shards ({', '.join(missing[:3])}…); "
            "fetch the model again: qserve pull ID"
        )
    return loaded_names(names, shards)


def _below(folder: Path, names: list[str], read: list[str]) -> list[str]:
    """Meta's own format, which its repositories keep in a folder."""
    held = folder / "original"
    if "original" not in names or not read or not held.is_dir():
        return []
    return [f"original/{file.name}" for file in sorted(held.iterdir()) if are_weights(file.name)]


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether config.json says that lm_head is the embedding."""
    return bool(parts_config(config).get("tie_word_embeddings", text_config(config).get("tie_word_embeddings")))


def own_config(folder: Path, config: Mapping[str, Any], headers: Headers) -> tuple[Mapping[str, Any], str | None]:
    """config.json as the files have it, and a note where they differ: tied, beside a head of other values.

    transformers does not tie such a head, and vLLM would leave it out.
    """
    if not is_tied(config) or not _has_own_head(headers):
        return config, None
    untied = with_keys(config, {"tie_word_embeddings": False})
    note = (
        f"config.json of {folder} sets tie_word_embeddings, but its files have an {_HEAD} that differs from the "
        "embedding: that head is served; write false into config.json, or take the head out of the files"
    )
    return untied, note


def _has_own_head(headers: Headers) -> bool:
    places = {
        tensor.name: file
        for file, header in headers.items()
        for tensor in header
        if tensor.name.endswith((_HEAD, _EMBEDDING))
    }
    head = next((name for name in places if name.endswith(_HEAD)), None)
    table = next((name for name in places if name.endswith(_EMBEDDING)), None)
    if head is None or table is None:
        return False
    return _sampled(places[head], head) != _sampled(places[table], table)


def _sampled(file: Path, name: str) -> tuple[Any, ...]:
    """Dtype, shape and some bytes of a tensor: two that are the same have the same, and two trained ones have not."""
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(header_bytes))[name]
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        step = max(_SAMPLE_BYTES, (end - begin) // _SAMPLES)
        samples = []
        for place in range(begin, end, step):
            stream.seek(place)
            samples.append(stream.read(min(_SAMPLE_BYTES, end - place)))
    return entry["dtype"], tuple(entry["shape"]), *samples
