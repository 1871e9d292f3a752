"""A failed start as data: kind, message, and the numbers that the engine reported."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Failure", "FailureKind"]


class FailureKind(enum.StrEnum):
    """What went wrong, for whoever decides what to do next."""

    OUT_OF_MEMORY = "out of memory"
    MEMORY_TAKEN = "memory taken by others"
    KV_CACHE_TOO_SMALL = "KV cache too small"
    TOO_MANY_SEQUENCES = "too many sequences"
    QUANTIZATION = "quantization"
    MISSING_PLUGIN = "missing plugin"
    CHECKPOINT = "checkpoint"
    ARCHITECTURE = "architecture"
    ADDRESS_IN_USE = "address in use"
    CHAT_TEMPLATE = "chat template"
    FLAG = "flag"
    LENGTH = "length"
    DEVICE = "device"
    NCCL = "NCCL"
    IMPORT = "import"
    TOOLCHAIN = "toolchain"
    SLOW_LOADING = "slow loading"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Failure:
    """The reason of a start that failed.

    Attributes:
        kind: what it is about.
        message: what was seen and what to change, for people.
        said: the engine's own words.
        max_model_len: the longest that it says would fit.
        max_num_seqs: the most that it says would fit.
        needed_bytes: what it wanted of one device.
        available_bytes: what there was of it.
        during_cache: memory ran out while the KV cache was being made or after it, so that a smaller one helps.

    """

    kind: FailureKind
    message: str
    said: str = ""
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None
    during_cache: bool = False
