"""The next change of what is resident: which model is loaded, and which leave for it. Pure: looks at nothing itself.

A model that is waited for is loaded beside the others where the plan has room for its start. Else the resident models
that are worth least leave: worth is how long a model takes to load times its priority, over how long it was idle. A
model with requests has served for a window before it leaves, so that two models that are asked in turns change places
once in a window and not with every request; one without requests leaves at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qserve.planner.residency.footprint import Budget, Footprint

__all__ = ["Change", "ModelView", "Rules", "can_ever_load", "load_s_of", "next_change", "wait_of"]

# Of a model that was never loaded here: a few seconds a GiB from a disk, and what an engine takes to start.
_UNKNOWN_LOAD_S = 20.0
_BYTES_PER_S = 500e6
# A model that has just answered is not worth infinitely much.
_LEAST_IDLE_S = 1.0


@dataclass(frozen=True)
class Rules:
    """Of a service.

    Attributes:
        window_s: how long a model with requests serves before another one may take its place; None: twice what the
            other takes to load, at least 5 s.
        least_window_s: of a window that is not given.
    """

    window_s: float | None = None
    least_window_s: float = 5.0

    def window_of(self, newcomer: Footprint) -> float:
        """The window before `newcomer` may take the place of a model with requests, in seconds."""
        if self.window_s is not None:
            return self.window_s
        return max(self.least_window_s, 2 * load_s_of(newcomer))


@dataclass(frozen=True)
class ModelView:
    """A model as it is now. Times are seconds of one clock.

    Attributes:
        is_resident: it holds its memory.
        is_busy: it has requests, running or waiting.
        waiting_since_s: the first request that waits for it came then; None: none waits.
        resident_since_s: it was ready then.
        idle_since_s: its last request ended then, or it was ready then.
        is_pinned: it never leaves for another.
        priority: weighs its waits and its worth; 1 is usual.
        ttl_s: it leaves when it was idle for so long; None: only for another.
        may_load: its last start did not fail just now.
    """

    footprint: Footprint
    is_resident: bool = False
    is_busy: bool = False
    waiting_since_s: float | None = None
    resident_since_s: float = 0.0
    idle_since_s: float = 0.0
    is_pinned: bool = False
    priority: float = 1.0
    ttl_s: float | None = None
    may_load: bool = True

    @property
    def name(self) -> str:
        """Of the model."""
        return self.footprint.name

    def worth(self, now_s: float) -> float:
        """What it costs to let it leave: seconds of its next load by its priority, over those of its idleness."""
        idle_s = 0.0 if self.is_busy else now_s - self.idle_since_s
        return load_s_of(self.footprint) * self.priority / max(_LEAST_IDLE_S, idle_s)


@dataclass(frozen=True)
class Change:
    """`unload` leave, in this order, then `load` starts; None: nothing does."""

    unload: tuple[str, ...] = ()
    load: str | None = None


def load_s_of(footprint: Footprint) -> float:
    """How long its start takes, as far as that is known."""
    return footprint.load_s or _UNKNOWN_LOAD_S + footprint.num_bytes / _BYTES_PER_S


def wait_of(model: ModelView, now_s: float) -> float:
    """How long its first request waits, weighed by its priority; the longest is next."""
    return 0.0 if model.waiting_since_s is None else (now_s - model.waiting_since_s) * model.priority


def next_change(models: Sequence[ModelView], budget: Budget, rules: Rules, now_s: float) -> Change | None:
    """What is to change now; None: nothing, or not yet. Where the budget has become smaller, models leave at once.

    The model that waits longest comes first: none that came later is loaded before it, unless there is room beside.
    """
    waiting = [one for one in models if one.waiting_since_s is not None and not one.is_resident and one.may_load]
    waiting.sort(key=lambda one: wait_of(one, now_s), reverse=True)
    resident = [one for one in models if one.is_resident]
    if too_many := _too_many(resident, budget, now_s):
        return Change(unload=tuple(one.name for one in too_many))
    for at, newcomer in enumerate(waiting):
        if _fits_beside(newcomer, resident, budget):
            return Change(load=newcomer.name)
        if at == 0 and (victims := _victims(newcomer, resident, budget, rules, now_s)) is not None:
            return Change(tuple(one.name for one in victims), newcomer.name)
    expired = [one for one in resident if _has_expired(one, now_s)]
    return Change(unload=(expired[0].name,)) if expired else None


def _too_many(resident: Sequence[ModelView], budget: Budget, now_s: float) -> list[ModelView]:
    """Those of the resident that leave so that the others fit, the least worth first."""
    leaving: list[ModelView] = []
    staying = sorted(resident, key=lambda one: (not one.is_pinned, -one.worth(now_s)))
    while staying and not staying[-1].is_pinned and budget.short_together([one.footprint for one in staying]):
        leaving.append(staying.pop())
    return leaving


def can_ever_load(newcomer: ModelView, models: Sequence[ModelView], budget: Budget) -> bool:
    """Whether it fits beside those that never leave."""
    return _fits_beside(newcomer, [one for one in models if one.is_pinned and one is not newcomer], budget)


def _victims(
    newcomer: ModelView, resident: Sequence[ModelView], budget: Budget, rules: Rules, now_s: float
) -> list[ModelView] | None:
    """Those that leave, the least worth first; None: not enough may leave now."""
    window_s = rules.window_of(newcomer.footprint)
    may_leave = [one for one in resident if not one.is_pinned and _had_its_window(one, window_s, now_s)]
    may_leave.sort(key=lambda one: one.worth(now_s))
    leaving: list[ModelView] = []
    for one in may_leave:
        leaving.append(one)
        if _is_enough(newcomer, resident, leaving, budget):
            return _needed(newcomer, resident, leaving, budget)
    return None


def _needed(
    newcomer: ModelView, resident: Sequence[ModelView], leaving: list[ModelView], budget: Budget
) -> list[ModelView]:
    """Without those that need not leave: a small one was counted before a large one that is enough alone."""
    for one in reversed(leaving[:-1]):
        others = [other for other in leaving if other is not one]
        if _is_enough(newcomer, resident, others, budget):
            leaving = others
    return leaving


def _is_enough(
    newcomer: ModelView, resident: Sequence[ModelView], leaving: Sequence[ModelView], budget: Budget
) -> bool:
    return _fits_beside(newcomer, [one for one in resident if one not in leaving], budget)


def _fits_beside(newcomer: ModelView, others: Sequence[ModelView], budget: Budget) -> bool:
    return not budget.short_together([newcomer.footprint, *(one.footprint for one in others)])


def _had_its_window(one: ModelView, window_s: float, now_s: float) -> bool:
    return not one.is_busy or now_s - one.resident_since_s >= window_s


def _has_expired(one: ModelView, now_s: float) -> bool:
    ttl_s = math.inf if one.ttl_s is None else one.ttl_s
    return not one.is_pinned and not one.is_busy and now_s - one.idle_since_s >= ttl_s
