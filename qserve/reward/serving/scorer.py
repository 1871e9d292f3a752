"""What the reward worker's app needs of a scorer, whichever engine computes the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qserve.reward.items import Score, ScoreItem, ScorerStats

if TYPE_CHECKING:
    from qserve.reward.checkpoints import Vectors
    from qserve.reward.scoring.fair_queue import Flow
    from qserve.reward.scoring.template import RewardTemplate

__all__ = ["Scorer"]


class Scorer(Protocol):
    """Scores tokenized texts."""

    max_length: int
    """Tokens of the longest text that it reads."""
    tokens_ahead: int
    """Tokens of one request that may be with it at once."""
    template: RewardTemplate

    @property
    def vectors(self) -> Vectors | None:
        """How its vectors are, of an embedding model."""

    @property
    def stats(self) -> ScorerStats:
        """What it has computed so far."""

    @property
    def meta(self) -> dict[str, Any]:
        """How scores come about, for people and for records."""

    async def score(self, items: Sequence[ScoreItem], flow: Flow | None = None) -> list[Score]:
        """A score per item, in order. Raises TextRefused, RewardFailed."""
        ...
