"""Single-threaded counters and histograms in prometheus_client's format, at a tenth of its cost per event.

prometheus_client's own take a lock per value and another per label lookup; the gateway counts every event of every
stream in the event loop's thread, and locks were half the cost of a relayed event. Names, samples and text are the
same. Values of several processes can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["Counter", "Histogram", "Instrument", "Series"]

Series = list[tuple[Sequence[str], Any]]
"""Counts of one family: labels and values, as plain JSON."""


class _Count:
    """One series of a counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`, which is never negative."""
        self.value += amount


class Counter(Collector):
    """A counter family with labels. Not thread-safe."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._about = name, text
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], _Count] = {}
        registry.register(self)

    def labels(self, *values: str) -> _Count:
        """The series of these label values, exposed as 0 from now on."""
        series = self._series.get(values)
        if series is None:
            assert len(values) == len(self._labels), f"{self._about[0]} has the labels {self._labels}"
            series = self._series[values] = _Count()
        return series

    def series(self) -> Series:
        """The counts, for `add` in another process."""
        return [(values, series.value) for values, series in self._series.items()]

    def add(self, series: Series) -> None:
        """Adds the counts of another process."""
        for values, value in series:
            self.labels(*values).inc(value)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for values, series in self._series.items():
            family.add_metric(values, series.value)
        yield family


class _Buckets:
    """One series of a histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`value`, seen `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class Histogram(Collector):
    """A histogram family with labels. `bounds` ascend; larger values go into the bucket +Inf."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._about = name, text
        self._labels = tuple(labels)
        self._bounds = tuple(map(float, bounds))
        self._names = [*map(floatToGoString, self._bounds), "+Inf"]
        self._series: dict[tuple[str, ...], _Buckets] = {}
        registry.register(self)

    def labels(self, *values: str) -> _Buckets:
        """The series of these values."""
        series = self._series.get(values)
        if series is None:
            assert len(values) == len(self._labels), f"{self._about[0]} has the labels {self._labels}"
            series = self._series[values] = _Buckets(self._bounds)
        return series

    def series(self) -> Series:
        """The observations, for `add` in another process."""
        return [(values, [series.counts, series.total]) for values, series in self._series.items()]

    def add(self, series: Series) -> None:
        """Adds the observations of another process."""
        for values, (counts, total) in series:
            own = self.labels(*values)
            own.counts = [one + more for one, more in zip(own.counts, counts, strict=True)]
            own.total += total

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        for values, series in self._series.items():
            family.add_metric(values, self._cumulative(series.counts), sum_value=series.total)
        yield family

    def _cumulative(self, counts: Sequence[int]) -> list[tuple[str, float]]:
        """Each bucket counts all that is at most its bound."""
        sums, so_far = [], 0
        for count in counts:
            so_far += count
            sums.append(so_far)
        return list(zip(self._names, map(float, sums), strict=True))


Instrument = Counter | Histogram
