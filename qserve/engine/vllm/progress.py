"""Progress of a running vLLM, from its counters."""

from __future__ import annotations

from qserve.client.metrics import samples_of
from qserve.worker.heartbeat import Progress

__all__ = ["progress_of"]

# One observation a step, since 0.8; tokens where it is missing.
_STEPS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")
_SEQUENCES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def progress_of(metrics: str) -> Progress | None:
    """From the text of GET /metrics; None where it has none of the counters. All of them only grow."""
    samples = samples_of(metrics, *_STEPS, *_SEQUENCES)
    steps = [one.value for one in samples if one.name in _STEPS]
    if not steps:
        return None
    return Progress(int(sum(steps)), int(sum(one.value for one in samples if one.name in _SEQUENCES)))
