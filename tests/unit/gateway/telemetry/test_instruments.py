"""The gateway's own counters and histograms expose what prometheus_client's would."""

from __future__ import annotations

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from qserve.gateway.telemetry.instruments import Counter, Histogram

BOUNDS = (0.0025, 0.01, 0.5, 1, 5)
prometheus_client.disable_created_metrics()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, *BOUNDS, 0.3, 7.0]), st.integers(1, 4))))
def test_a_histogram_tells_the_same(seen):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Histogram("wait_seconds", "A wait", ("model",), BOUNDS, ours)
    other = prometheus_client.Histogram("wait_seconds", "A wait", ("model",), buckets=BOUNDS, registry=theirs)
    for model, value, count in seen:
        own.labels(model).observe(value, count)
        for _ in range(count):
            other.labels(model).observe(value)
    assert samples(ours) == samples(theirs)
    assert [line for line in text(ours) if line[0] == "#"] == [line for line in text(theirs) if line[0] == "#"]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9))))
def test_a_counter_tells_the_same(seen):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    own = Counter("answers", "Answers", ("model",), ours)
    other = prometheus_client.Counter("answers", "Answers", ("model",), registry=theirs)
    own.labels("zero")
    other.labels("zero")
    for model, amount in seen:
        own.labels(model).inc(amount)
        other.labels(model).inc(amount)
    assert text(ours) == text(theirs)


def text(registry):
    return generate_latest(registry).decode().splitlines()


def samples(registry):
    """Sums are of another order: nearly equal is equal."""
    return {
        (one.name, *sorted(one.labels.items())): pytest.approx(one.value)
        for family in registry.collect()
        for one in family.samples
    }


def test_labels_that_are_missing_are_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        Counter("answers", "Answers", ("model", "status"), CollectorRegistry()).labels("m")
