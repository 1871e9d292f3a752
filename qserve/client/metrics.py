"""Prometheus text as /metrics answers it: samples, and histograms with percentiles."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

__all__ = ["Histogram", "Sample", "histograms", "samples_of", "total"]


@dataclass(frozen=True)
class Histogram:
    """Counts between bounds; the last bound is infinity. `bounds` in seconds."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum_s: float

    @property
    def count(self) -> float:
        """All observations."""
        return sum(self.counts)

    def percentile_s(self, share: float) -> float | None:
        """By linear interpolation in its bucket; None without observations. In the last bucket: its lower bound."""
        wanted, seen, low = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count and seen + count >= wanted:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - seen) / count
            seen += count
            low = low if math.isinf(bound) else bound
        return None

    def percentile_range_s(self, share: float) -> tuple[float, float] | None:
        """The bounds of the bucket that holds it; None without observations."""
        wanted, seen, low = share * self.count, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count and seen + count >= wanted:
                return low, bound
            seen, low = seen + count, bound
        return None

    def trimmed(self) -> tuple[list[float], list[float]]:
        """Edges and counts from the first bucket with an observation to the last one; infinity is left as it is."""
        held = [index for index, count in enumerate(self.counts) if count]
        if not held:
            return [], []
        first, last = held[0], held[-1]
        edges = [self.bounds[first - 1] if first else 0.0, *self.bounds[first : last + 1]]
        return edges, list(self.counts[first : last + 1])


def samples_of(text: str, *prefixes: str) -> list[Sample]:
    """The samples whose lines begin with one of `prefixes`, or all; lines that are none are left out."""
    samples: list[Sample] = []
    for line in text.splitlines():
        if line.startswith(prefixes or ""):
            # One by one: the parser refuses a whole text for one bad line.
            with contextlib.suppress(ValueError, IndexError):
                samples += (one for family in text_string_to_metric_families(line) for one in family.samples)
    return samples


def total(samples: Iterable[Sample], name: str) -> float | None:
    """The sum over all labels; None where there is no such sample."""
    values = [one.value for one in samples if one.name == name]
    return sum(values) if values else None


def histograms(samples: Iterable[Sample], name: str, by: str) -> dict[str, Histogram]:
    """The histograms of one name by one label."""
    held = [one for one in samples if one.name.startswith(name)]
    found = {}
    for label in sorted({one.labels.get(by, "") for one in held if one.name == f"{name}_bucket"}):
        mine = [one for one in held if one.labels.get(by, "") == label]
        upto: dict[float, float] = {}
        for one in mine:
            if one.name == f"{name}_bucket":
                bound = float(one.labels["le"])
                upto[bound] = upto.get(bound, 0.0) + one.value
        bounds = sorted(upto)
        counts = [upto[bound] - (upto[bounds[index - 1]] if index else 0.0) for index, bound in enumerate(bounds)]
        sum_s = sum(one.value for one in mine if one.name == f"{name}_sum")
        found[label] = Histogram(tuple(bounds), tuple(counts), sum_s)
    return found
