"""Ropes that vLLM reads and transformers does not."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError

__all__ = ["check_rope"]

# Source: transformers 5.19, ROPE_INIT_FUNCTIONS; configuration_qwen2_vl.py and its like rename mrope themselves.
_UNKNOWN = {"su": "longrope", "ntk": "yarn or dynamic", "mrope": "default"}
_RENAME_MROPE = ("qwen2_vl", "qwen2_5_vl")


def check_rope(spec: ModelSpec) -> None:
    """Raises UsageError for a type that transformers has no function for."""
    kind = spec.rope.kind
    if kind not in _UNKNOWN or (kind == "mrope" and spec.family in _RENAME_MROPE):
        return
    raise UsageError(
        f"{spec.id}: rope_type {kind!r} of its config.json is unknown to transformers; it is {_UNKNOWN[kind]} there, "
        "or give --engine vllm"
    )
