"""What the simulated scheduler takes and gives: an engine's steps, the limits of a step, answered requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qserve.planner.speed.terms.engine_costs import EngineCosts

__all__ = ["WATERMARK", "Finished", "Limits", "SimulatedRun", "Steps"]

WATERMARK = 0.01
"""Of the KV cache, that is left free where a request joins others."""


class Steps(Protocol):
    """What the scheduler asks of an engine: how long a step takes, and how requests get in."""

    @property
    def costs(self) -> EngineCosts: ...

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of a step that takes one token of `batch` sequences of `context` tokens in the mean."""
        ...

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with prompts: (new tokens, tokens before them) of each, and `batch` decodes."""
        ...


@dataclass(frozen=True)
class Limits:
    """What bounds a step: sequences, tokens of a step, tokens of KV cache of the replica.

    `recv_interval`: decode steps between two looks at what has arrived, as SGLang's --scheduler-recv-interval has it;
    an idle server looks at once, and so does one that has just prefilled.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_tokens: int
    recv_interval: int = 1


class Finished(NamedTuple):
    """One answered request: seconds from its arrival to the first token and to the last one.

    `place` counts requests in the order of the trace, else as they were issued.
    """

    arrival_s: float
    ttft_s: float
    e2e_s: float
    input_tokens: int
    output_tokens: int
    place: int = -1

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first: (E2E - TTFT) / (tokens - 1), as vLLM's benchmark defines it."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0


@dataclass(frozen=True)
class SimulatedRun:
    """All answers, how long it took, and what the time went into."""

    finished: tuple[Finished, ...]
    duration_s: float
    prefill_s: float
    preemptions: int
    rejected: int = 0
    peak_running: int = 0
