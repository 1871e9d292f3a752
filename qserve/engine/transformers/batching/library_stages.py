"""The three stages of the library's loop: its own, and what runs in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from qserve.engine.transformers.batching.batcher import Sequence

__all__ = ["OriginalStages", "Stages", "StepEntry"]


class Stages(Protocol):
    """What runs in the place of the three stages of the library's loop; none may raise, or the thread ends."""

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        ...

    def step(self, model: Any) -> None:
        """Forward and sampling."""

    def update(self) -> None:
        """The library's bookkeeping of the step, and the ends of sequences."""


@dataclass(frozen=True)
class OriginalStages:
    """The library's own stages, which may raise."""

    prepare: Callable[[], bool]
    step: Callable[[Any], None]
    update: Callable[[], None]


class StepEntry(NamedTuple):
    """A sequence in the step at hand: how many of its tokens are computed, after how many that are cached."""

    sequence: Sequence
    num_tokens: int
    num_cached: int
