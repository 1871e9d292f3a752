"""A worker as the summary shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qserve.planner.plan import Plan
from qserve.reward.recipe.config import WITHOUT_MODEL
from qserve.supervisor.sanity.check import Sanity

__all__ = ["ReadyWorker"]


@dataclass(frozen=True)
class ReadyWorker:
    """A worker that is ready: `memory` is what it holds as measured, `phases_s` what its start was spent on, `sanity`
    the result of its self-test, where there was one. `name` tells replicas apart.
    `group`: of the replicas of its model; "": as its role."""

    role: str
    names: tuple[str, ...]
    plan: Plan
    memory: Mapping[str, Any]
    phases_s: Mapping[str, float]
    notes: Sequence[str] = ()
    sanity: Sanity | None = None
    name: str = ""
    group: str = ""

    @property
    def has_model(self) -> bool:
        """False for a recipe of rules and judges alone."""
        return self.plan.model.architecture != WITHOUT_MODEL
