"""Which files of a repository are fetched: what an engine loads, and no second set of weights."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qserve.hub.weight_names import ADAPTER, HEADS, PICKLED, loaded_names

__all__ = ["wanted_names"]

_ENDINGS = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_DENSE = re.compile(r"\d+_Dense\w*/model\.safetensors")
"""Of a layer behind the pooling of an embedding model, which sentence-transformers keeps in a folder of its own."""
_PICKLED = "pytorch_model"
_OF_OTHERS = ("original/", "onnx/", "openvino/", "gguf/", "coreml/", "runs/", "checkpoint-")
"""Folders of other formats and of a trainer."""


def wanted_names(names: Sequence[str], shards: Sequence[str]) -> list[str]:
    """Those of a repository's files, in their order; `shards`: the files that its index names, if it has one.

    Without safetensors the pickled weights are: both engines read them. An adapter's files are where there is no whole
    model beside them. A reward model's head comes with its body.
    """
    own = [name for name in names if not name.startswith(_OF_OTHERS)]
    weights = set(loaded_names(own, shards)) or {name for name in own if name.startswith(_PICKLED)}
    weights = weights or {name for name in own if name in ADAPTER}
    return [name for name in own if name in weights or _is_beside(name, is_adapter=ADAPTER[1] in weights)]


def _is_beside(name: str, *, is_adapter: bool) -> bool:
    """Configurations, tokenizers, templates, and the head of a reward or an embedding model."""
    if name in ADAPTER:
        return is_adapter and name == ADAPTER[0]
    return (
        name.startswith(HEADS) or _DENSE.fullmatch(name) is not None or (name.endswith(_ENDINGS) and name != PICKLED[1])
    )
