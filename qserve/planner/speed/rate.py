"""The highest rate of requests at which a server keeps its targets."""

from __future__ import annotations

from dataclasses import replace

from qserve.planner.speed.estimate import Replica
from qserve.planner.speed.figures import KeptCount, Targets
from qserve.planner.speed.load import Load

__all__ = ["KEPT_SHARE", "highest_rate"]

KEPT_SHARE = 0.9
"""So many of the requests must keep the targets."""
_STEPS = 7
_REQUESTS = 160


def highest_rate(replica: Replica, load: Load, targets: Targets) -> float:
    """Poisson arrivals a second of one server, 0.0 where even a single request misses the targets.

    Without targets it is the rate of a full server: what it answers while the queue never runs empty.
    """
    plain = Load(load.input_tokens, load.output_tokens, prefix_share=load.prefix_share, seed=load.seed)
    full = _saturated_rate(replica, plain)
    if not targets:
        return full
    if not _keeps(replica, replace(plain, concurrency=1), targets):
        return 0.0
    low, high = 0.0, full
    for _ in range(_STEPS):
        rate = (low + high) / 2
        if _keeps(replica, replace(plain, rps=rate, num_prompts=_REQUESTS), targets):
            low = rate
        else:
            high = rate
    return low


def _saturated_rate(replica: Replica, load: Load) -> float:
    limits = replica.limits
    held = limits.kv_cache_tokens // (load.input_tokens + load.output_tokens)
    streams = max(1, min(limits.max_num_seqs, held + held // 4, 512))
    return replica.run(replace(load, concurrency=streams, num_prompts=4 * streams)).requests_per_s


def _keeps(replica: Replica, load: Load, targets: Targets) -> bool:
    """Simulated no further than it takes to tell."""
    count = KeptCount(targets, load.total_prompts, KEPT_SHARE)
    figures = replica.run_while(load, count.is_open)
    return count.has_reached if figures is None else figures.kept_share(targets) >= KEPT_SHARE
