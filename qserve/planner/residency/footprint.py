"""What a model takes of each memory at rest and while it starts, and which models fit together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

__all__ = ["RAM", "Budget", "Fit", "Footprint", "most_together", "verdict_on"]

RAM = "RAM"
"""The pool of a model on the CPU, and of what a model on cards holds beside them. Cards are named by their place."""

# Of more models than this the sets are not listed: there are thousands.
_MOST_LISTED = 12


@dataclass(frozen=True)
class Footprint:
    """A model's memory by pool, in bytes.

    Attributes:
        name: of the model.
        rest: what it holds while it serves, at most.
        starting: what its start takes beyond `rest`, for as long as it lasts.
        load_s: how long a start takes, from earlier runs; None: not known.
    """

    name: str
    rest: Mapping[str, int]
    starting: Mapping[str, int] = field(default_factory=dict)
    load_s: float | None = None

    def peak(self, pool: str) -> int:
        """What it takes of `pool` while it starts."""
        return self.rest.get(pool, 0) + self.starting.get(pool, 0)

    @property
    def num_bytes(self) -> int:
        """At rest, over all pools."""
        return sum(self.rest.values())


class Fit(StrEnum):
    """A verdict on models together.

    AT_REST: they would fit while they serve, but not in any order of starts: one that has to start again is too much.
    """

    TOGETHER = "together"
    AT_REST = "at rest only"
    NO = "not together"


@dataclass(frozen=True)
class Budget:
    """What all models may take of each pool, in bytes."""

    pools: Mapping[str, int]

    def short_at_rest(self, models: Sequence[Footprint]) -> int:
        """The bytes that are missing for them to serve together, of the pool that is shortest; 0: they fit."""
        return max(0, *(self._held(pool, models) - size for pool, size in self.pools.items()))

    def short_together(self, models: Sequence[Footprint]) -> int:
        """The bytes that are missing for each of them to start while the others serve; 0: they fit."""
        starts = (
            self._held(pool, models) + one.starting.get(pool, 0) - size
            for pool, size in self.pools.items()
            for one in models
        )
        return max(0, *starts, self.short_at_rest(models))

    @staticmethod
    def _held(pool: str, models: Sequence[Footprint]) -> int:
        return sum(one.rest.get(pool, 0) for one in models)


def verdict_on(models: Sequence[Footprint], budget: Budget) -> Fit:
    """Whether they can be resident together, each of which may have to start again at any time."""
    if budget.short_at_rest(models):
        return Fit.NO
    return Fit.AT_REST if budget.short_together(models) else Fit.TOGETHER


def most_together(models: Sequence[Footprint], budget: Budget) -> Iterator[tuple[Footprint, ...]]:
    """The sets that fit together and to which no further model can be added, largest first.

    Of many models only the one that takes them in their order.
    """
    if len(models) > _MOST_LISTED:
        yield _in_order(models, budget)
        return
    found: list[frozenset[str]] = []
    for size in range(len(models), 0, -1):
        for some in combinations(models, size):
            names = frozenset(one.name for one in some)
            if any(names <= larger for larger in found) or verdict_on(some, budget) is not Fit.TOGETHER:
                continue
            found.append(names)
            yield some


def _in_order(models: Sequence[Footprint], budget: Budget) -> tuple[Footprint, ...]:
    taken: list[Footprint] = []
    for one in models:
        if verdict_on([*taken, one], budget) is Fit.TOGETHER:
            taken.append(one)
    return tuple(taken)
