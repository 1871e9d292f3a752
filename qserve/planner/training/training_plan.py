"""`TrainingPlan`: what a training run needs on each card, in its worst phase, and whether that fits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qserve.planner.plan import Suggestion, Term
from qserve.planner.training.duration import Duration
from qserve.planner.training.operations import Operations
from qserve.planner.training.training_request import TrainingRequest
from qserve.units import format_bytes

__all__ = ["CardMemory", "TrainingPlan"]


@dataclass(frozen=True)
class CardMemory:
    """One card in the phase that needs most: `terms` and `free_bytes` sum to `total_bytes`.

    `role` is trainer or engine. `phase` is rollout, backward, evaluation or step; `phases` has the sum of each.
    `other_terms` are those that only lesser phases have.
    """

    name: str
    role: str
    total_bytes: int
    phase: str
    phases: dict[str, int]
    terms: tuple[Term, ...]
    other_terms: tuple[Term, ...] = ()

    @property
    def used_bytes(self) -> int:
        return sum(term.num_bytes for term in self.terms)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    @property
    def high_bytes(self) -> int:
        """The sum at the upper end of every term's band."""
        return sum(term.high_bytes for term in self.terms)


@dataclass(frozen=True, repr=False)
class TrainingPlan:
    """The answer of `qserve plan train`.

    `host_bytes` is RAM (or NVMe) of the whole node for what is offloaded. `dominant` names the largest term.
    `notes` matter for just this request; `traps` are what write-ups get wrong, with its numbers. `operations` are None
    where rollouts are generated, and so is `duration`, of `request` over so many rows once.
    """

    model_id: str
    parameters: int
    trainable: int
    request: TrainingRequest
    cards: tuple[CardMemory, ...]
    host_bytes: int
    fits: bool
    why_not: str | None
    dominant: str
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = ()
    traps: tuple[str, ...] = ()
    operations: Operations | None = None
    duration: Duration | None = None

    def __repr__(self) -> str:
        fits = "fits" if self.fits else f"{format_bytes(self.short_bytes)} missing"
        cards = f"{len(self.cards)} × {self.cards[0].name}"
        return f"<TrainingPlan {self.request.method} of {self.model_id}, {cards}: {fits}>"

    @property
    def short_bytes(self) -> int:
        """How much the tightest card lacks; 0 where the plan fits."""
        return max(0, *(-card.free_bytes for card in self.cards))

    def to_json(self) -> dict[str, Any]:
        """The object that `qserve plan train --json` prints."""
        cards = [
            asdict(card) | {"used_bytes": card.used_bytes, "free_bytes": card.free_bytes, "high_bytes": card.high_bytes}
            for card in self.cards
        ]
        return {
            "model": {"id": self.model_id, "parameters": self.parameters, "trainable": self.trainable},
            "training": asdict(self.request) | {"tuning": self.request.tuning, "tokens": self.request.tokens},
            "devices": cards,
            "host_bytes": self.host_bytes,
            "fits": self.fits,
            "why_not": self.why_not,
            "short_bytes": self.short_bytes,
            "dominant": self.dominant,
            "suggestions": [asdict(suggestion) for suggestion in self.suggestions],
            "notes": list(self.notes),
            "traps": list(self.traps),
            "operations": asdict(self.operations) if self.operations else None,
            "duration": asdict(self.duration) if self.duration else None,
        }
