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

from qserve.core.nested import text_config, text_keys, with_text_config
from qserve.hub.bounded import read_json
from qserve.hub.folder import is_tied, own_config, read_headers, weight_files

__all__ = ["clean_folder"]


def clean_folder(folder: Path, overrides: Mapping[str, Any] | None = None) -> Path:
    """`folder` itself where it holds one set of weights; else one of links to it, without what is not read.

    `overrides`: keys of the language model in the place of config.json's own, nested as there (`Plan.overrides`).
    It lies in the user's cache, under a name that follows from what it shows, and stays: an engine's own caches go by
    the path.
    """
    if not (folder / "config.json").is_file():
        return folder
    files, config = weight_files(folder), read_json(folder / "config.json")
    if not files.read and not overrides:
        return folder
    written, _ = own_config(folder, config, read_headers(folder, files) if is_tied(config) else {})
    if overrides:
        written = _overridden(written, overrides)
    if not files.left_out and written is config:
        return folder
    hidden = {*files.left_out, "original"}
    shown = sorted({entry.name for entry in folder.iterdir()} - hidden)
    return _linked(folder.resolve(), shown, None if written is config else written)


def _overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    keys = text_keys(overrides)
    replaced = {"rope_scaling"} if "rope_parameters" in keys else set()  # the older name would win
    text = {name: value for name, value in text_config(config).items() if name not in replaced}
    return with_text_config(config, {**text, **keys})


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
