"""A model of the hub as a folder without its weights' data: small files whole, safetensors by their headers.

What recognises a checkpoint on disk recognises it there, before anything large is fetched. A file of weights is as long
as the hub's and holds nothing behind its header, which takes no disk.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qserve.client.answer import Refused, Unreachable, UnsendableKey
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub.bounded import MAX_JSON_BYTES, parse_json, shard_names
from qserve.hub.remote import answer_of, header_of, listed_files, refusal
from qserve.hub.wanted import wanted_names
from qserve.hub.weight_names import INDEX

__all__ = ["headers_of"]

_LARGEST_FILE = 1 << 40


def headers_of(model_id: str, revision: str | None) -> Path | None:
    """A folder of this process, called as the cache calls a commit's; None where the hub can't be reached.

    `revision`: a branch, a tag or a commit; None: main. Raises ModelNotFound where the hub says that there is no such
    model, and BrokenCheckpoint for one whose weights are pickled: they have no headers.
    """
    try:
        commit, sizes = listed_files(model_id, revision or "main")
        folder = _folder() / f"models--{model_id.replace('/', '--')}" / "snapshots" / commit
        if not folder.exists():
            _fill(folder, model_id, commit, sizes)
        return folder
    except Refused as refused:
        raise ModelNotFound(refusal(model_id, revision, refused.answer)) from None
    except (Unreachable, UnsendableKey, ValueError):
        return None


@cache
def _folder() -> Path:
    made = tempfile.mkdtemp(prefix="qserve-headers-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _fill(folder: Path, model_id: str, commit: str, sizes: Mapping[str, int]) -> None:
    """Under another name until it is whole."""
    growing = Path(tempfile.mkdtemp(dir=_folder()))
    shards = shard_names(_index(model_id, commit), f"the index of {model_id}") if INDEX in sizes else []
    for name in wanted_names(list(sizes), shards):
        if name not in sizes:
            raise BrokenCheckpoint(f"the hub lacks {name} of {model_id}, which its index names")
        file = growing / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_beginning(model_id, commit, name))
        if name.endswith(".safetensors"):
            os.truncate(file, min(sizes[name], _LARGEST_FILE))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # another thread was first
        growing.rename(folder)


def _index(model_id: str, commit: str) -> dict[str, object]:
    return parse_json(answer_of(model_id, commit, INDEX).body, f"the index of {model_id}")


def _beginning(model_id: str, commit: str, name: str) -> bytes:
    """What is kept of a file. Raises BrokenCheckpoint for one that only its data describes."""
    if name.endswith(".safetensors"):
        return header_of(model_id, commit, name)
    if name.endswith((".bin", ".pt", ".pth")):
        raise BrokenCheckpoint(
            f"{model_id} has pickled weights ({name}), which tell nothing before they are fetched: "
            f"qserve pull {model_id} --no-plan"
        )
    body = answer_of(model_id, commit, name).body
    if len(body) > MAX_JSON_BYTES:
        raise BrokenCheckpoint(f"{model_id}/{name} is larger than {MAX_JSON_BYTES >> 20} MiB, and is no such file")
    return body
