"""Microseconds of small pieces of work on a device, without what their launch costs the processor."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from bench.limits import synchronize

__all__ = ["microseconds"]

# On a card so many calls are captured as one graph, which is replayed: nothing is launched in between.
_CALLS, _ROUNDS = 20, 7


def microseconds(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Median time of a call; `calls` do the same work on other memory in turn, so that no cache holds it."""
    for call in calls:
        call()
    synchronize(device)
    turn = [calls[index % len(calls)] for index in range(max(_CALLS, len(calls)))]
    run = _captured(turn) if device.type == "cuda" else lambda: [call() for call in turn]
    return statistics.median(_seconds(run, device) for _ in range(_ROUNDS)) / len(turn) * 1e6


def _captured(turn: Sequence[Callable[[], object]]) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in turn:
            call()
    graph.replay()
    replay: Callable[[], object] = graph.replay
    return replay


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begun.record()
    run()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000
