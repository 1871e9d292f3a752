"""Checks a checkpoint for incomplete fused matrices, which vLLM does not detect.

It loads q, k and v into one matrix, gate and up into another, and counts that one as loaded when any part of it was
there. Seen with 0.32: without one `gate_proj.weight` the server starts, says nothing, and answers from memory that
nobody wrote.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from qserve.errors import BrokenCheckpoint
from qserve.hub.folder import read_tensors

__all__ = ["check_fused"]

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_PART = re.compile(r"(?P<layer>.*\.)(?P<part>[qkv]_proj|gate_proj|up_proj)\.(?P<kind>weight|qweight|weight_packed)")


def check_fused(folder: Path) -> None:
    """Raises BrokenCheckpoint where `folder` holds some parts of a fused matrix and not the others."""
    parts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for tensor in read_tensors(folder) or ():
        found = _PART.fullmatch(tensor.name)
        if found is not None:
            parts[found["layer"], found["kind"]].add(found["part"])
    missing = [
        f"{layer}{part}.{kind}"
        for (layer, kind), present in parts.items()
        for fused in _FUSED
        if present & set(fused)
        for part in fused
        if part not in present
    ]
    if missing:
        raise BrokenCheckpoint(
            f"{folder} lacks {', '.join(missing[:3])}{f' and {len(missing) - 3} more' if len(missing) > 3 else ''}: "
            "vLLM would start and answer with whatever is in memory there. Download the model again"
        )
