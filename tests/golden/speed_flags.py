"""How a published run was served and asked: what its row's notes state, else its engine's and its data set's own."""

from __future__ import annotations

import itertools
import math
import random
import re
from functools import cache
from typing import NamedTuple

from qserve.core.hardware import Device
from qserve.planner.speed.load import Arrival

__all__ = ["Flags", "flags_of", "sharegpt", "steady", "vllm_defaults"]

_LARGE_BYTES, _LARGEST_BYTES = 70 << 30, 160 << 30


class Flags(NamedTuple):
    """Of one server; 0 where the row states nothing. `prefix` is the share of prompt tokens that caches answered."""

    chunk: int = 0
    seqs: int = 0
    kv_tokens: int = 0
    prefix: float = 0.0


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


_SHAREGPT_REQUESTS, _SPREAD, _MOST_TOKENS = 1000, 1.0, 1024


@cache
def sharegpt(input_tokens: int, output_tokens: int) -> tuple[tuple[int, int], ...]:
    """Lengths of ShareGPT's conversations with these means: far apart, deviations above the means.

    vllm-optimization-lab's page says so of the data set; a log-normal distribution whose deviation is 1.3 of its mean
    stands in, cut at vLLM's limit of 1,024 tokens.
    """
    draw = random.Random(0)  # noqa: S311

    def drawn(mean: int) -> list[int]:
        some = [math.exp(draw.gauss(0, _SPREAD)) for _ in range(_SHAREGPT_REQUESTS)]
        scale = mean * len(some) / sum(some)
        return [max(1, min(_MOST_TOKENS, round(one * scale))) for one in some]

    return tuple(zip(drawn(input_tokens), drawn(output_tokens), strict=True))


def steady(rate: float, prompts: int, lengths: tuple[tuple[int, int], ...]) -> tuple[Arrival, ...]:
    """Arrivals one after the other at the same distance."""
    some = itertools.islice(itertools.cycle(lengths), prompts)
    return tuple(Arrival(place / rate, new, out) for place, (new, out) in enumerate(some))
