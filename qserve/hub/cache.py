"""The local Hugging Face cache, read without importing huggingface_hub (that import alone takes half a second)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cached_ids", "snapshot"]


def snapshot(model_id: str) -> Path | None:
    """The folder of `model_id`'s main revision in the cache, or the only one there; None where it was never fetched.

    Layout: <cache>/models--ORG--NAME/{refs/main, snapshots/<commit>}. Source: huggingface_hub, "Understand caching".
    """
    repo = _cache_folder() / f"models--{model_id.replace('/', '--')}"
    ref = repo / "refs" / "main"
    if ref.is_file():
        named = repo / "snapshots" / ref.read_text().strip()
        if named.is_dir():
            return named
    found = sorted((repo / "snapshots").glob("*"))
    return found[0] if len(found) == 1 else None


def cached_ids() -> tuple[str, ...]:
    """Ids of the models of which the cache holds anything, in the order of the alphabet."""
    try:
        names = sorted(path.name for path in _cache_folder().glob("models--*--*"))
    except OSError:
        return ()
    return tuple("/".join(name.removeprefix("models--").split("--", 1)) for name in names)


def _cache_folder() -> Path:
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        value = os.environ.get(variable)
        if value:
            return Path(value).expanduser() / below
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() / "huggingface" / "hub"
