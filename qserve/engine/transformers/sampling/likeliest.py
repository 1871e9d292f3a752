"""What a step needs of a head that can leave out the logits of unlikely tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from qserve.engine.transformers.sampling.sampler import SequenceSampler
from qserve.model.cpu.shortlist import ShortlistHead

__all__ = ["only_likeliest"]


@contextmanager
def only_likeliest(head: Any, samplers: Iterable[SequenceSampler]) -> Iterator[None]:
    """Within it, a `ShortlistHead` gives the logits that `samplers` need; behind it, and any other head, all."""
    if not isinstance(head, ShortlistHead):
        yield
        return
    wanted = [sampler.num_wanted for sampler in samplers]
    head.num_wanted = None if None in wanted else max(filter(None, wanted), default=None)
    try:
        yield
    finally:
        head.num_wanted = None
