"""Changes of a request or machine after which a plan may fit; not yet planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.planner.candidate import Candidate
from qserve.planner.request import PlanRequest

__all__ = ["Change", "ChangeGroup", "ChangeKind", "change_of", "halved"]


class ChangeKind(IntEnum):
    """Kinds of change, in the order in which they are suggested: what people would do first."""

    OWN_SETTING = 1
    """What the user fixed and nobody needs fixed: it costs nothing."""
    SMALLER_MODEL = 2
    PRECISION = 3
    LENGTH = 4
    SEQUENCES = 5
    STEP = 6
    CACHE = 7
    ENGINE_SETTINGS = 8
    ADAPTERS = 9
    MORE_CARDS = 10
    LARGER_CARD = 11
    OFFLOAD = 12


@dataclass(frozen=True)
class Change:
    """A changed request or machine, what it is and costs in words. `gpu` and `checkpoint` where they change, too."""

    change: str
    cost: str
    request: PlanRequest
    hardware: Hardware
    model: str
    gpu: str | None = None
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class ChangeGroup:
    """Changes of one kind. `most`: later ones cost more than earlier ones, so that the first that fit are enough."""

    kind: ChangeKind
    changes: tuple[Change, ...]
    most: int = 1


def change_of(candidate: Candidate, change: str, cost: str, request: PlanRequest) -> Change:
    """A changed request on the same machine."""
    return Change(change, cost, request, candidate.hardware, candidate.checkpoint.name)


def halved(
    candidate: Candidate,
    kind: ChangeKind,
    most: int | None,
    limited: Callable[[int], PlanRequest],
    label: Callable[[int], str],
    cost: str,
    least: int = 1,
) -> ChangeGroup:
    """A limit of the request at a half, a quarter, … of the `most` that was refused, down to `least`."""
    whole = most or 1
    numbers = (whole >> times for times in range(1, whole.bit_length()) if whole >> times >= least)
    return ChangeGroup(kind, tuple(change_of(candidate, label(n), cost, limited(n)) for n in numbers))
