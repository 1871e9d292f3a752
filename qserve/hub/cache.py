"""The local Hugging Face cache, read without importing huggingface_hub (that import alone takes half a second)."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cached_ids", "commit_of", "is_commit", "revisions", "snapshot"]


_LEAST_OF_A_COMMIT = 7


def snapshot(model_id: str, revision: str | None = None) -> Path | None:
    """The folder of `model_id` at a revision in the cache; None where it was never fetched.

    `revision`: a branch or a tag as it was when it was fetched, a commit, or the first 7 digits and more of one; None:
    main, or the only one there. The folder is called by its commit.

    Layout: <cache>/models--ORG--NAME/{refs/main, snapshots/<commit>}. Source: huggingface_hub, "Understand caching".
    """
    repo = _repo(model_id)
    commit = _referred(repo, revision or "main")
    if commit is not None and (named := repo / "snapshots" / commit).is_dir():
        return named
    found = sorted((repo / "snapshots").glob("*"))
    if revision is not None:
        found = [one for one in found if is_commit(one.name, revision)]
    return found[0] if len(found) == 1 else None


def revisions(model_id: str) -> dict[str, tuple[str, ...]]:
    """Commits of `model_id` that the cache holds files of, each with the branches and tags that it was fetched by."""
    repo = _repo(model_id)
    names: dict[str, list[str]] = {path.name: [] for path in sorted((repo / "snapshots").glob("*")) if path.is_dir()}
    for ref in sorted((repo / "refs").rglob("*")):
        name = ref.relative_to(repo / "refs").as_posix()
        if ref.is_file() and (commit := _referred(repo, name)) in names:
            names[str(commit)].append(name)
    return {commit: tuple(found) for commit, found in names.items()}


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in a cache of the hub; None of any other."""
    try:
        parts = folder.expanduser().absolute().parts
    except RuntimeError:  # ~nobody
        return None
    is_snapshot = len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--")
    return parts[-1] if is_snapshot else None


def cached_ids() -> tuple[str, ...]:
    """Ids of the models of which the cache holds anything, in the order of the alphabet."""
    try:
        names = sorted(path.name for path in _cache_folder().glob("models--*--*"))
    except OSError:
        return ()
    return tuple("/".join(name.removeprefix("models--").split("--", 1)) for name in names)


def _repo(model_id: str) -> Path:
    return _cache_folder() / f"models--{model_id.replace('/', '--')}"


def _referred(repo: Path, ref: str) -> str | None:
    """The commit that a branch or a tag was at when it was fetched."""
    try:
        return (repo / "refs" / ref).read_text().strip() or None
    except (OSError, ValueError):
        return None


def is_commit(name: str, revision: str) -> bool:
    """Whether a user's `revision` is that commit: all of it, or its first 7 digits and more."""
    return name == revision or (len(revision) >= _LEAST_OF_A_COMMIT and name.startswith(revision))


def _cache_folder() -> Path:
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        value = os.environ.get(variable)
        if value:
            return Path(value).expanduser() / below
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return Path(home).expanduser() / "huggingface" / "hub"
