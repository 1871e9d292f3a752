"""How long a context a release of vLLM derives from a config, and what of a rope it does not start with.

Source: vllm 0.26.0 to 0.32.0, _get_and_verify_max_len in config/model.py, derive_max_model_len_and_key,
patch_legacy_rope_type, and model_executor/layers/rotary_embedding: the table of angles may be shorter than what is
derived, and what lies behind it is no angle. Releases before 0.26 are taken to derive as it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.nested import text_config
from qserve.core.rope import Rope
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.errors import UsageError

__all__ = ["check_rope", "context_length"]

_LENGTHS = (
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_ALREADY_STRETCHED = ("su", "longrope", "llama3")
_OLD_AND_NEW = {("su", "longrope"), ("mrope", "default")}


def context_length(checkpoint: Checkpoint, version: VllmVersion) -> int:
    """The largest --max-model-len that this release takes and has angles for."""
    rope = checkpoint.spec.rope
    derived = _written(text_config(checkpoint.config), rope.positions)
    if rope.kind == "yarn" and version.multiplies_yarn:
        derived = int(rope.original * (rope.factor or 1.0))
    elif rope.kind not in (*_ALREADY_STRETCHED, "yarn"):
        derived = int(derived * (rope.factor or 1.0))
    return min(derived, rope.cached)


def _written(text: Mapping[str, Any], positions: int) -> int:
    """The smallest of the keys that say a length; Cohere's goes before all."""
    given = text.get("model_max_length")
    if isinstance(given, int) and given > 0:
        return given
    return min([positions, *(int(text[name]) for name in _LENGTHS if isinstance(text.get(name), int))])


def check_rope(rope: Rope, where: str) -> None:
    """Raises UsageError for a rope that transformers reads and vLLM does not."""
    if rope.kind == "yarn" and rope.factor is None:
        raise UsageError(f"{where}: the factor of its yarn rope is null in config.json, and vLLM needs a number")
    if rope.legacy is not None and (rope.legacy, rope.kind) not in _OLD_AND_NEW:
        raise UsageError(
            f"{where}: its rope has rope_type {rope.kind!r} and type {rope.legacy!r}, which vLLM refuses to choose "
            "between; leave type out of config.json"
        )
    if rope.kind == "mrope" and not rope.sections:
        raise UsageError(f"{where}: a rope of type mrope needs mrope_section in config.json")
