"""config.json and safetensors headers from the hub by range requests: kilobytes, never the weights."""

from __future__ import annotations

import os
import struct
from typing import Any
from urllib.parse import quote

from qserve.client.answer import Answer, Refused, Unreachable, UnsendableKey
from qserve.client.http import ask
from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub.bounded import (
    MAX_HEADER_BYTES,
    MAX_JSON_BYTES,
    check_count,
    is_below,
    parse_header,
    parse_json,
    shard_names,
)
from qserve.hub.folder import ReadCheckpoint
from qserve.hub.revisions import is_revision

__all__ = ["answer_of", "fetch", "gated", "header_of", "listed_files", "refusal"]

_TIMEOUT_S = 10.0
# Headers of the largest single files are below this; a longer one costs a second request.
_FIRST_READ_BYTES = 1 << 20
# Source: huggingface_hub.constants and huggingface_hub.errors.
_COMMIT_HEADER, _ERROR_HEADER = "X-Repo-Commit", "X-Error-Code"


def fetch(model_id: str, revision: str | None = None) -> ReadCheckpoint | None:
    """What the hub has by that id at a revision (None: main); None when the hub can't be reached.

    All files are read at the commit that the first one was answered from, however the branch moves meanwhile. Raises
    ModelNotFound where the hub says that there is no such model or revision, or that a token is needed.
    """
    try:
        answer = answer_of(model_id, revision or "main", "config.json")
        commit = _commit_of(answer) or revision
        config = parse_json(answer.body, f"config.json of {model_id}")
        return ReadCheckpoint(None, config, _tensors(model_id, commit or "main"), revision=commit)
    except Refused as refused:
        raise ModelNotFound(refusal(model_id, revision, refused.answer)) from None
    except (Unreachable, UnsendableKey, ValueError):
        return None


def _commit_of(answer: Answer) -> str | None:
    """The commit that it was answered from; None where it is not told.

    The hub sends a file of a repository from another address, or another host, and what that says of commits, if
    anything, is not of this repository: the first answer that says one counts.
    """
    told = (headers.get(_COMMIT_HEADER, "") for headers in (*answer.redirects, answer.headers))
    return next((commit for commit in told if is_revision(commit)), None)


def _tensors(model_id: str, revision: str) -> tuple[Tensor, ...] | None:
    """Tensors by header; None for a repository without safetensors."""
    tensors: list[Tensor] = []
    for name in _file_names(model_id, revision):
        try:
            header = header_of(model_id, revision, name)
        except Refused as refused:
            if refused.answer.status == 404:
                return None
            raise
        tensors += parse_header(header[8:], f"{model_id}/{name}")[0]
        check_count(len(tensors), model_id)
    return tuple(tensors)


def header_of(model_id: str, revision: str, name: str) -> bytes:
    """The beginning of a safetensors file up to its tensors' data. Raises Refused, Unreachable or BrokenCheckpoint."""
    head = _get(model_id, revision, name, _FIRST_READ_BYTES)
    header_bytes = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
    if not 0 < header_bytes <= MAX_HEADER_BYTES:
        raise BrokenCheckpoint(f"{model_id}/{name} does not begin with a safetensors header")
    if header_bytes + 8 > len(head):
        head = _get(model_id, revision, name, header_bytes + 8)
    return head[: 8 + header_bytes]


def listed_files(model_id: str, revision: str) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and the sizes of its files. Raises as `header_of`, and for a name that is no file's."""
    where = f"the hub's list of {model_id}"
    listed = parse_json(_asked(f"api/models/{model_id}/revision/{quote(revision, safe='')}?blobs=true").body, where)
    commit, files = listed.get("sha"), listed.get("siblings")
    if not isinstance(commit, str) or not is_revision(commit) or not isinstance(files, list):
        raise BrokenCheckpoint(f"{where} has no commit or no files; try again, or another HF_ENDPOINT")
    sizes: dict[str, Any] = {str(one.get("rfilename")): one.get("size") for one in files if isinstance(one, dict)}
    if wrong := [name for name, size in sizes.items() if not is_below(name) or type(size) is not int]:
        raise BrokenCheckpoint(f"{where} names {wrong[0][:200]!r}, which is no file of it, or has no size")
    return commit, sizes


def _file_names(model_id: str, revision: str) -> list[str]:
    try:
        where = f"the index of {model_id}"
        return shard_names(parse_json(_get(model_id, revision, "model.safetensors.index.json"), where), where)
    except Refused as refused:
        if refused.answer.status != 404:
            raise
        return ["model.safetensors"]


def _get(model_id: str, revision: str, name: str, num_bytes: int | None = None) -> bytes:
    return answer_of(model_id, revision, name, num_bytes).body


def answer_of(model_id: str, revision: str, name: str, num_bytes: int | None = None) -> Answer:
    """A file, or its first bytes. Raises Refused or Unreachable."""
    return _asked(f"{model_id}/resolve/{quote(revision, safe='')}/{name}", num_bytes)


def _asked(path: str, num_bytes: int | None = None) -> Answer:
    answer = ask(
        "GET",
        f"{_endpoint()}/{path}",
        api_key=os.environ.get("HF_TOKEN"),
        headers={} if num_bytes is None else {"Range": f"bytes=0-{num_bytes - 1}"},
        timeout_s=_TIMEOUT_S,
        max_bytes=MAX_JSON_BYTES + 1 if num_bytes is None else num_bytes,
    )
    return answer.raise_for_status()


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise ModelNotFound(f"HF_ENDPOINT={endpoint!r} is not an http address")
    return endpoint


def gated(model_id: str) -> str:
    """What is wrong with a model whose terms must be accepted, and what to do."""
    return (
        f"the hub shows it to those alone who accepted its terms: accept them on {_endpoint()}/{model_id}, then set "
        "HF_TOKEN to a token of yours (https://huggingface.co/settings/tokens)"
    )


def refusal(model_id: str, revision: str | None, answer: Answer) -> str:
    """Why the hub does not give it, for people."""
    named = repr(model_id) if revision is None else f"{model_id!r} at revision {revision!r}"
    if answer.status in (401, 403) and answer.headers.get(_ERROR_HEADER) == "GatedRepo":
        return f"{named} can't be read yet: {gated(model_id)}"
    if answer.status in (401, 403):
        return f"the hub does not show {named} to us (HTTP {answer.status}): no such model, or it needs HF_TOKEN"
    if revision is not None and answer.headers.get(_ERROR_HEADER) == "RevisionNotFound":
        return (
            f"the hub has no revision {revision!r} of {model_id!r}; --revision takes a branch, a tag or a commit of it "
            f"(its page lists them: {_endpoint()}/{model_id}/commits/main)"
        )
    is_right = "id" if revision is None else "id, and the revision,"
    return f"the hub answered HTTP {answer.status} for {named}; is the {is_right} right?"
