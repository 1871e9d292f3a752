"""A folder as the engines are to see it: one set of weights, and a config.json that says what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qserve.hub.bounded import read_json
from qserve.hub.folder import read_header
from qserve.hub.weights import weight_files

__all__ = ["clean_folder", "own_config"]

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def own_config(folder: Path, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    """config.json as the files have it, and a note where they differ: tied, beside a head of other values.

    transformers does not tie such a head, and vLLM would leave it out.
    """
    nested = config.get("text_config")
    tied = config.get("tie_word_embeddings", nested.get("tie_word_embeddings") if isinstance(nested, Mapping) else None)
    files = weight_files(folder).read
    if not tied or not files or not _has_own_head(files):
        return config, None
    untied: dict[str, Any] = {**config, "tie_word_embeddings": False}
    if isinstance(nested, Mapping):
        untied["text_config"] = {**nested, "tie_word_embeddings": False}
    note = (
        f"config.json of {folder} sets tie_word_embeddings, but its files have an {_HEAD} that differs from the "
        "embedding: that head is served; write false into config.json, or take the head out of the files"
    )
    return untied, note


def _has_own_head(files: tuple[Path, ...]) -> bool:
    places = {
        tensor.name: file for file in files for tensor in read_header(file) if tensor.name.endswith((_HEAD, _EMBEDDING))
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


def clean_folder(folder: Path) -> Path:
    """`folder` itself where it holds one set of weights; else one of links to it, without what is not read.

    It lies in the user's cache, under a name that follows from what it shows, and stays: an engine's own caches go by
    the path.
    """
    if not (folder / "config.json").is_file():
        return folder
    files, config = weight_files(folder), read_json(folder / "config.json")
    if not files.read:
        return folder
    written, _ = own_config(folder, config)
    if not files.left_out and written is config:
        return folder
    hidden = {*files.left_out, "original"}
    shown = sorted({entry.name for entry in folder.iterdir()} - hidden)
    return _linked(folder.resolve(), shown, None if written is config else written)


def _linked(folder: Path, shown: list[str], config: Mapping[str, Any] | None) -> Path:
    stamp = json.dumps([str(folder), shown, config, (folder / "config.json").stat().st_mtime_ns])
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qserve" / "checkpoints"
    made = root / f"{folder.name}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    if made.is_dir():
        return made
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = Path(tempfile.mkdtemp(dir=root))
    for name in shown:
        (fresh / name).symlink_to(folder / name)
    if config is not None:
        (fresh / "config.json").unlink()
        (fresh / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    try:
        fresh.rename(made)
    except OSError:  # another process was faster
        shutil.rmtree(fresh)
    return made
