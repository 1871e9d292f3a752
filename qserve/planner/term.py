"""A term of an estimate: one thing that holds memory on a device, with the way it was counted.

An engine's estimate is a list of terms. The columns of a `DevicePlan`, the bytes held, the budget of the KV cache, the
lines of --explain, bands and learned corrections are all folds over that list: a new term is one class and one line in
the list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Literal, TypeVar

from qserve.planner.calibration import CalibratedTerm, Correction

__all__ = ["COLUMNS", "Column", "MeasuredKind", "Term", "TermKind", "columns_of"]

Column = Literal["weights", "kv_cache", "activations", "cuda_graphs", "runtime"]
COLUMNS: Mapping[Column, str] = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "activations": "activations",
    "cuda_graphs": "CUDA graphs",
    "runtime": "runtime",
}
"""What fills a device, with its name in words, in the order of every table and bar. `NAME_bytes` is a field of a plan's
devices, and of what a worker measures."""


@dataclass(frozen=True)
class Term:
    """One figure of an estimate on one device, with the way it was obtained.

    `column` is the figure of the `DevicePlan` that it is part of. `is_charged`: the engine takes it from the budget of
    the KV cache; what is not charged is on the device all the same.
    """

    name: str
    num_bytes: int
    formula: str
    source: str
    low_bytes: int
    high_bytes: int
    column: Column = "runtime"
    is_charged: bool = True


def columns_of(terms: Iterable[Term]) -> dict[Column, int]:
    """Bytes of every column; 0 of one without terms."""
    sums = dict.fromkeys(COLUMNS, 0)
    for term in terms:
        sums[term.column] += term.num_bytes
    return sums


Sizes = TypeVar("Sizes")


class TermKind(ABC, Generic[Sizes]):
    """A kind of term, as functions of the `Sizes` at which an engine's candidate is tried, and of the pipeline stage.

    `learned` names the measurement of earlier runs that moves it.
    """

    name: ClassVar[str]
    column: ClassVar[Column]
    learned: ClassVar[CalibratedTerm | None] = None

    @abstractmethod
    def num_bytes(self, sizes: Sizes, stage: int) -> int:
        """Bytes on one rank of the stage, as arithmetic has them, before anything learned."""

    @abstractmethod
    def formula(self, sizes: Sizes, stage: int) -> str:
        """How they are counted, with this candidate's numbers."""

    @abstractmethod
    def source(self, sizes: Sizes) -> str:
        """Where formula and constants come from."""

    def band(self, sizes: Sizes, num_bytes: int) -> tuple[int, int]:
        """(low, high) around `num_bytes`; exact unless a kind says otherwise."""
        return num_bytes, num_bytes

    def is_charged(self, sizes: Sizes) -> bool:
        """Whether the engine takes it from the budget of the KV cache."""
        return True

    def is_shown(self, sizes: Sizes, num_bytes: int) -> bool:
        """Whether it stands in the list: what holds nothing does not."""
        return num_bytes > 0

    def corrected_bytes(self, sizes: Sizes, stage: int, correction: Correction | None) -> int:
        """`num_bytes`, moved to where an earlier run measured it."""
        num_bytes = self.num_bytes(sizes, stage)
        return num_bytes if correction is None else correction.moved(num_bytes)

    def term(self, sizes: Sizes, stage: int, num_bytes: int, correction: Correction | None = None) -> Term:
        """The term of `num_bytes` in words."""
        low, high = self.band(sizes, num_bytes)
        return Term(
            self.name,
            num_bytes,
            self.formula(sizes, stage),
            self.source(sizes),
            low,
            high,
            self.column,
            self.is_charged(sizes),
        )


class MeasuredKind(TermKind[Sizes]):
    """A kind that rests on a measured constant: a correction leaves nothing of its band."""

    def term(self, sizes: Sizes, stage: int, num_bytes: int, correction: Correction | None = None) -> Term:
        found = super().term(sizes, stage, num_bytes)
        if correction is None:
            return found
        return replace(found, low_bytes=num_bytes, high_bytes=num_bytes, source=correction.source)
