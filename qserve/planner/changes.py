"""Changes of a request or machine after which a plan may fit; not yet planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.planner.request import PlanRequest
from qserve.planner.setup import Setup

__all__ = ["Change", "ChangeGroup", "ChangeKind", "change_of", "halved"]


class ChangeKind(IntEnum):
    """Kinds of change, cheapest for the user first: the order in which they are suggested."""

    LENGTH = 1
    SEQUENCES = 2
    STEP = 3
    SHARE_OF_CARD = 4
    CACHE = 5
    ENGINE_SETTINGS = 6
    ADAPTERS = 7
    PRECISION = 8
    OFFLOAD = 9
    MORE_CARDS = 10
    LARGER_CARD = 11


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
    """Changes of one kind. `is_ordered`: later ones cost more than earlier ones, so that the first that fits is it."""

    kind: ChangeKind
    changes: tuple[Change, ...]
    is_ordered: bool = True


def change_of(setup: Setup, change: str, cost: str, request: PlanRequest) -> Change:
    """A changed request on the same machine."""
    return Change(change, cost, request, setup.hardware, setup.checkpoint.id)


def halved(
    setup: Setup,
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
    return ChangeGroup(kind, tuple(change_of(setup, label(n), cost, limited(n)) for n in numbers))
