"""config.json and safetensors headers from the hub by range requests: kilobytes, never the weights."""

from __future__ import annotations

import os
import struct

from qserve.client.answer import Refused, Unreachable, UnsendableKey
from qserve.client.http import ask
from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub.bounded import MAX_HEADER_BYTES, MAX_JSON_BYTES, check_count, parse_header, parse_json, shard_names
from qserve.hub.folder import ReadCheckpoint

__all__ = ["fetch"]

_TIMEOUT_S = 10.0
# Headers of the largest single files are below this; a longer one costs a second request.
_FIRST_READ_BYTES = 1 << 20


def fetch(model_id: str) -> ReadCheckpoint | None:
    """What the hub has by that id; None when the hub can't be reached.

    Raises ModelNotFound where the hub says that there is no such model, or that a token is needed.
    """
    try:
        config = parse_json(_get(model_id, "config.json"), f"config.json of {model_id}")
        return ReadCheckpoint(None, config, _tensors(model_id))
    except Refused as refused:
        raise ModelNotFound(_refusal(model_id, refused.answer.status)) from None
    except (Unreachable, UnsendableKey, ValueError):
        return None


def _tensors(model_id: str) -> tuple[Tensor, ...] | None:
    """Tensors by header; None for a repository without safetensors."""
    tensors: list[Tensor] = []
    for name in _file_names(model_id):
        try:
            head = _get(model_id, name, _FIRST_READ_BYTES)
        except Refused as refused:
            if refused.answer.status == 404:
                return None
            raise
        header_bytes = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else 0
        if not 0 < header_bytes <= MAX_HEADER_BYTES:
            raise BrokenCheckpoint(f"{model_id}/{name} does not begin with a safetensors header")
        if header_bytes + 8 > len(head):
            head = _get(model_id, name, header_bytes + 8)
        tensors += parse_header(head[8 : 8 + header_bytes], f"{model_id}/{name}")[0]
        check_count(len(tensors), model_id)
    return tuple(tensors)


def _file_names(model_id: str) -> list[str]:
    try:
        where = f"the index of {model_id}"
        return shard_names(parse_json(_get(model_id, "model.safetensors.index.json"), where), where)
    except Refused as refused:
        if refused.answer.status != 404:
            raise
        return ["model.safetensors"]


def _get(model_id: str, name: str, num_bytes: int | None = None) -> bytes:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise ModelNotFound(f"HF_ENDPOINT={endpoint!r} is not an http address")
    answer = ask(
        "GET",
        f"{endpoint}/{model_id}/resolve/main/{name}",
        api_key=os.environ.get("HF_TOKEN"),
        headers={} if num_bytes is None else {"Range": f"bytes=0-{num_bytes - 1}"},
        timeout_s=_TIMEOUT_S,
        max_bytes=MAX_JSON_BYTES + 1 if num_bytes is None else num_bytes,
    )
    return answer.raise_for_status().body


def _refusal(model_id: str, status: int) -> str:
    if status in (401, 403):
        return f"the hub does not show {model_id!r} to us (HTTP {status}): no such model, or it needs HF_TOKEN"
    return f"the hub answered HTTP {status} for {model_id!r}; is the id right?"
