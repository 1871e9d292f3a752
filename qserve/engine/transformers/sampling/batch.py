"""From a step's logits to one token a sequence: what both batchers do between two forwards."""

from __future__ import annotations

import math

import torch

from qserve.engine.transformers.batching.batcher import Deliveries, Sequence, failure_of
from qserve.engine.transformers.sampling.sampler import TokenChoice
from qserve.model.failures import NOT_A_NUMBER, SequenceFailed
from qserve.model.out_of_memory import OutOfMemory, is_broken_device, is_out_of_memory

__all__ = ["choose_tokens"]


def choose_tokens(sequences: list[Sequence], scores: torch.Tensor) -> Deliveries:
    """The next token of each sequence from its row of `scores` [sequences, vocab], float32.

    What goes wrong in one row fails its own sequence and no other.
    """
    best = scores.argmax(dim=-1)
    # Read at once: each reading waits for a GPU.
    likeliest, highest = best.tolist(), scores.gather(1, best[:, None])[:, 0].tolist()
    deliveries = [(one, _choose(one, scores[row], likeliest[row], highest[row])) for row, one in enumerate(sequences)]
    for one, item in deliveries:
        one.undelivered = item
        if isinstance(item, TokenChoice):
            one.drawn_ids.append(item.token_id)
        else:
            one.has_failed = True
    return deliveries


def _choose(sequence: Sequence, row: torch.Tensor, likeliest: int, highest: float) -> TokenChoice | SequenceFailed:
    if not math.isfinite(highest):  # NaN logits of a broken checkpoint, or of an overflow in float16
        return SequenceFailed(NOT_A_NUMBER)
    try:
        if sequence.sampler.is_plain_greedy:
            sequence.sampler.record(likeliest)
            return TokenChoice(likeliest)
        return sequence.sampler.choose(row)
    except Exception as error:
        if is_broken_device(error):
            raise
        if is_out_of_memory(error):
            return OutOfMemory.while_doing("choosing its next token", error)
        return failure_of(sequence, error)
