"""The workload of a service: lengths and numbers of sequences, named as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Workload"]


@dataclass(frozen=True)
class Workload:
    """Limits of one engine.

    `max_model_len`: prompt and answer of one sequence, in tokens. `max_num_seqs`: sequences that run at once.
    `max_num_batched_tokens`: tokens of one step. `prompt_len`: the part of max_model_len that arrives as one prompt.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prompt_len: int
