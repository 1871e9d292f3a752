"""Models of the hub that are on this machine: how large, when last read; and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.errors import ModelNotFound
from qserve.hub.cache import is_commit
from qserve.hub.names import near_ids

__all__ = ["LocalModel", "local_models", "named", "remove"]


@dataclass(frozen=True)
class LocalModel:
    """One commit of a model in the library's cache.

    Attributes:
        refs: branches and tags that it was fetched by.
        num_bytes: of the files that it links to; files that another commit has as well count for both.
        num_bytes_partial: of the model's files that are not whole yet, whichever commit they are of.
        used_s: when one of its files was last read, in seconds of the epoch, as far as the file system notes it.
    """

    id: str
    commit: str
    refs: tuple[str, ...]
    folder: Path
    num_bytes: int
    num_bytes_partial: int
    used_s: float


def local_models() -> list[LocalModel]:
    """In the order of their ids."""
    found = []
    for repo in _repositories():
        partial = sum(file.stat().st_size for file in (repo.repo_path / "blobs").glob("*.incomplete"))
        for one in sorted(repo.revisions, key=lambda one: one.last_modified, reverse=True):
            used_s = max((file.blob_last_accessed for file in one.files), default=one.last_modified)
            refs = tuple(sorted(one.refs))
            sizes = (one.size_on_disk, partial)
            found.append(LocalModel(repo.repo_id, one.commit_hash, refs, one.snapshot_path, *sizes, used_s))
    return sorted(found, key=lambda one: one.id.lower())


def named(model_id: str, revision: str | None) -> list[LocalModel]:
    """Those that are meant by a model, or by one commit, branch or tag of it.

    Raises ModelNotFound with what is there.
    """
    models = local_models()
    found = [one for one in models if one.id.lower() == model_id.lower()]
    if not found:
        near = near_ids(model_id, [one.id for one in models])
        hint = f"; did you mean {', '.join(near)}?" if near else "; `qserve models --local` lists what is"
        raise ModelNotFound(f"{model_id} is not on this machine{hint}")
    meant = [one for one in found if revision in (None, *one.refs) or is_commit(one.commit, str(revision))]
    if not meant:
        there = ", ".join(" or ".join((*one.refs, one.commit[:12])) for one in sorted(found, key=lambda one: one.refs))
        raise ModelNotFound(f"{found[0].id} is here, but not at revision {revision}; here are {there}")
    return meant


def remove(meant: Sequence[LocalModel]) -> int:
    """Deletes commits of one model, as `named` tells them; the bytes that are free then."""
    from huggingface_hub import scan_cache_dir

    model_id, commits = meant[0].id, {one.commit for one in meant}
    cache = scan_cache_dir()
    # A copy of a repository may have its commits, and stays.
    own = frozenset(repo for repo in cache.repos if repo.repo_type == "model" and repo.repo_id == model_id)
    strategy = replace(cache, repos=own).delete_revisions(*commits)
    freed = int(strategy.expected_freed_size)
    if all(one.commit_hash in commits for repo in own for one in repo.revisions):
        freed += meant[0].num_bytes_partial
    strategy.execute()
    return freed


def _repositories() -> list[Any]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        return [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []
