"""How a published run was asked: its row's streams, rate or burst, and the lengths of its data set."""

from __future__ import annotations

import itertools
import math
import random
from functools import cache

from qserve.planner.speed.load import Arrival, Load
from tests.golden.speed_flags import flags_of

__all__ = ["is_inferencex", "load_of", "sharegpt", "steady"]

# How InferenceX served and asked (SemiAnalysisAI/InferenceX, benchmarks/single_node/qwen3.5_*.sh, spring of 2026):
# lengths of 0.8 to 1.0 of what is named (RANDOM_RANGE_RATIO), fp8 cache beside fp8 and fp4 weights; its recipes for
# B200, and those of B300 made after them, look at the queue every 10 decode steps, from 16 streams on every 30.
_SHORTEST_SHARE = 0.8
# Runs of one stream are alike: two of them tell what ten would.
_MOST_PROMPTS = 2500


def is_inferencex(row: dict[str, str]) -> bool:
    """Its own rows, and those that another list took from it."""
    return "397B" in row["model"] and ("origin InferenceX" in row["notes"] or "gap_analysis" in row["notes"])


def load_of(row: dict[str, str]) -> Load | None:
    """None where the row does not say how many requests there were, or how long."""
    new, out = (round(float(row[key] or 0)) for key in ("input_tokens", "output_tokens"))
    prompts = int(row["num_prompts"] or 0)
    if new < 1 or out < 1:
        return None
    cached, lengths = flags_of(row["notes"]).prefix, sharegpt(new, out) if "ShareGPT" in row["notes"] else ()
    if row["concurrency"]:
        streams, jitter = round(float(row["concurrency"])), _jitter(row)
        if is_inferencex(row):
            mean = (1 + _SHORTEST_SHARE) / 2
            new, out, jitter = round(new * mean), round(out * mean), 1 / mean - 1
        asked = min(prompts, _MOST_PROMPTS) or None
        return Load(new, out, streams, num_prompts=asked, jitter=jitter, prefix_share=cached, lengths=lengths)
    if row["request_rate"] == "inf" and prompts:
        return Load(new, out, burst=prompts, jitter=_jitter(row), lengths=lengths)
    if not row["request_rate"]:
        return None
    rate = float(row["request_rate"])
    if "a steady rate" in row["notes"]:
        return Load(new, out, trace=steady(rate, prompts, lengths or ((new, out),)))
    return Load(new, out, rps=rate, num_prompts=prompts or None, jitter=_jitter(row), lengths=lengths)


def _jitter(row: dict[str, str]) -> float:
    """How far lengths lie around their mean, by the row's note."""
    if "random lengths vary" in row["notes"]:
        return 0.95
    if "EOS allowed" in row["notes"]:
        return 0.7
    # Fixed lengths, and prompts that make all decodes wait: answers that began together end together.
    return 0.0 if row["source"].endswith("#NVIDIA") and row["engine"] == "SGLang" else 0.02


_SHAREGPT_REQUESTS, _SPREAD, _MOST_TOKENS = 1000, 1.0, 1024


@cache
def sharegpt(input_tokens: int, output_tokens: int) -> tuple[tuple[int, int], ...]:
    """Lengths of ShareGPT's conversations with these means: far apart, deviations above the means.

    vllm-optimization-lab's page says so of the data set; a log-normal distribution whose deviation is 1.3 of its mean
    stands in, cut at vLLM's limit of 1,024 tokens.
    """
    draw = random.Random(0)

    def drawn(mean: int) -> list[int]:
        some = [math.exp(draw.gauss(0, _SPREAD)) for _ in range(_SHAREGPT_REQUESTS)]
        scale = mean * len(some) / sum(some)
        return [max(1, min(_MOST_TOKENS, round(one * scale))) for one in some]

    return tuple(zip(drawn(input_tokens), drawn(output_tokens), strict=True))


def steady(rate: float, prompts: int, lengths: tuple[tuple[int, int], ...]) -> tuple[Arrival, ...]:
    """Arrivals one after the other at the same distance."""
    some = itertools.islice(itertools.cycle(lengths), prompts)
    return tuple(Arrival(place / rate, new, out) for place, (new, out) in enumerate(some))
