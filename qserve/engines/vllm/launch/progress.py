"""Progress of a running vLLM, from its counters."""

from __future__ import annotations

import re

from qserve.worker.heartbeat import Progress

__all__ = ["progress_of"]

# One observation a step, since 0.8; tokens where it is missing.
_STEPS = re.compile(
    r"^vllm:(?:iteration_tokens_total_count|generation_tokens_total|prompt_tokens_total)\{[^}]*\} (\S+)$", re.M
)
_SEQUENCES = re.compile(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", re.M)


def progress_of(metrics: str) -> Progress | None:
    """From the text of GET /metrics; None where it has none of the counters. All of them only grow."""
    steps = _STEPS.findall(metrics)
    if not steps:
        return None
    return Progress(int(sum(map(float, steps))), int(sum(map(float, _SEQUENCES.findall(metrics)))))
