"""How a published run was served: what its row's notes state, else its engine's own."""

from __future__ import annotations

import re
from typing import NamedTuple

from qserve.core.hardware import Device

__all__ = ["NO_FLAGS", "Flags", "flags_of", "vllm_defaults"]

_LARGE_BYTES, _LARGEST_BYTES = 70 << 30, 160 << 30


class Flags(NamedTuple):
    """Of one server; 0 where the row states nothing. `prefix` is the share of prompt tokens that caches answered."""

    chunk: int = 0
    seqs: int = 0
    kv_tokens: int = 0
    prefix: float = 0.0


NO_FLAGS = Flags()


def flags_of(notes: str) -> Flags:
    """`batched=8192 seqs=64 kv_tokens=51408 prefix=0.594` in a row's notes, each where the source tells it."""
    said = dict(re.findall(r"\b(batched|seqs|kv_tokens|prefix)=([\d.]+)", notes))
    return Flags(
        *(int(said.get(name, 0)) for name in ("batched", "seqs", "kv_tokens")), prefix=float(said.get("prefix", 0))
    )


def vllm_defaults(device: Device) -> tuple[int, int]:
    """(tokens, sequences) of a step by the card, as the OpenAI server of 0.8 and later takes them.

    vllm/engine/arg_utils.py: 8,192 and 1,024 from 70 GiB on except on an A100, else 2,048 and 256.
    """
    if device.total_bytes >= _LARGEST_BYTES:
        return 16384, 1024
    if device.total_bytes >= _LARGE_BYTES and "A100" not in device.name:
        return 8192, 1024
    return 2048, 256
