"""Stages of a load, and the arrival times of their requests.

Closed loop: so many at once, the next one when one is answered. Open loop: arrivals that do not wait for the server, as
users don't. Both as `vllm bench serve` has them (vLLM 0.32, benchmarks/serve.py: get_request).
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

__all__ = ["Stage", "arrivals"]


@dataclass(frozen=True)
class Stage:
    """One load, kept up until it ends.

    Attributes:
        concurrency: requests at once; None for an open loop.
        request_rate: requests a second, on average; None for a closed loop.
        burstiness: shape of the gamma distribution of the gaps; 1 is a Poisson process, less comes in bursts, more
            evenly, infinity like a clock.
        burst_size: requests that arrive at the same moment.
        num_prompts: requests; None: as many as fit into `duration_s`.
        duration_s: no new request after it; those that run are waited for.
    """

    concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    burst_size: int = 1
    num_prompts: int | None = None
    duration_s: float | None = None

    @property
    def name(self) -> str:
        if self.request_rate is None:
            return f"{self.concurrency} at once"
        burst = f" in bursts of {self.burst_size}" if self.burst_size > 1 else ""
        return f"{self.request_rate:g}/s{burst}"

    @property
    def load(self) -> float:
        """What orders stages of one kind."""
        return self.request_rate if self.request_rate is not None else float(self.concurrency or 0)


def arrivals(stage: Stage, rng: random.Random) -> list[float]:
    """When each request of an open loop is due, in seconds since the stage began.

    With `num_prompts` the gaps are scaled so that the last one comes at num_prompts / request_rate: a sum of random
    gaps would miss it by a few percent, and throughput with it.
    """
    assert stage.request_rate is not None
    bursts_per_s = stage.request_rate / stage.burst_size
    due: list[float] = []
    now_s = 0.0
    limit = math.inf if stage.num_prompts is None else stage.num_prompts
    while len(due) < limit:
        now_s += _gap(bursts_per_s, stage.burstiness, rng)
        if stage.num_prompts is None and now_s >= (stage.duration_s or 0.0):
            return due
        due += itertools.repeat(now_s, int(min(stage.burst_size, limit - len(due))))
    scale = (len(due) / stage.request_rate) / due[-1]
    due = [one * scale for one in due]
    return [one for one in due if stage.duration_s is None or one < stage.duration_s]


def _gap(bursts_per_s: float, burstiness: float, rng: random.Random) -> float:
    if math.isinf(burstiness):
        return 1.0 / bursts_per_s
    return rng.gammavariate(burstiness, 1.0 / (bursts_per_s * burstiness))
