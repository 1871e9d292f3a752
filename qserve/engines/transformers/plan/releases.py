"""Releases of transformers as the planner tells them apart."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.release import parse_release
from qserve.errors import UsageError

__all__ = ["CAPTURES_SINCE", "POOL_SINCE", "check_layers", "check_release", "check_rope"]

# From release 5 on the worker is qserve's own, with continuous batching over a pool; before, it is one `generate` call.
POOL_SINCE = (5, 0)
CAPTURES_SINCE = (5, 19)
"""Before, a worker's batcher is that of rows, whose steps are the library's: worker/batching/make.py."""


def check_release(text: str) -> None:
    """Raises UsageError for a release of transformers that nobody measured, or that is one of vLLM's."""
    if parse_release(text) < (4, 38):
        raise UsageError(
            f"--engine-version {text}: transformers before 4.38 is not planned for; leave it out, or give --engine vllm"
        )


def check_layers(spec: ModelSpec) -> None:
    """Raises UsageError for a model that the worker can't load, or with layers that no batcher of it serves.

    The library computes them by itself, its index for every token of a prompt in a loop of Python.
    """
    if spec.rare_parts:
        raise UsageError(
            f"{spec.id} has {', '.join(spec.rare_parts)}, which the transformers engine does not serve; give --engine "
            "vllm, with cards"
        )
    if not spec.family.has_library_class and spec.head.kind == "lm":
        raise UsageError(_why_not_loaded(spec))


def _why_not_loaded(spec: ModelSpec) -> str:
    if spec.audio or spec.vision:
        kind = "audio" if spec.audio else "images"
        return f"{spec.id} reads {kind}, and the transformers engine loads language models alone; give --engine vllm"
    return (
        f"{spec.id}: transformers has no class of its own for {spec.architecture or spec.family.name}, and qserve does "
        "not run code that comes with a checkpoint; take a later model of its kind"
    )


# Source: transformers 5.19, ROPE_INIT_FUNCTIONS.
_UNKNOWN = {"su": "longrope", "ntk": "yarn or dynamic", "mrope": "default"}


def check_rope(spec: ModelSpec) -> None:
    """Raises UsageError for a type that transformers has no function for."""
    kind = spec.rope.kind
    if kind not in _UNKNOWN or (kind == "mrope" and spec.family.renames_mrope):
        return
    raise UsageError(
        f"{spec.id}: rope_type {kind!r} of its config.json is unknown to transformers; it is {_UNKNOWN[kind]} there, "
        "or give --engine vllm"
    )
