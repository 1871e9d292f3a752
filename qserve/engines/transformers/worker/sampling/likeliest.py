"""What a step needs of a head that can leave out the logits of unlikely tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.cpu.shortlist import ShortlistHead

__all__ = ["only_likeliest"]


@contextmanager
def only_likeliest(head: Any, samplers: Iterable[SequenceSampler], *, at_first: bool = False) -> Iterator[bool]:
    """Within it, a `ShortlistHead` gives the logits that `samplers` need; behind it, and any other head, all.

    Yields whether some may be missing. `at_first`: who draws asks again for all of them where those are too few.
    """
    if not isinstance(head, ShortlistHead):
        yield False
        return
    wanted = [sampler.num_wanted_first if at_first else sampler.num_wanted for sampler in samplers]
    head.num_wanted = None if None in wanted else max(filter(None, wanted), default=None)
    try:
        yield head.num_wanted is not None
    finally:
        head.num_wanted = None
