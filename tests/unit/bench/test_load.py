"""Arrivals of the open loop: the rate that was asked for, the same ones for the same seed."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from qserve.bench.load import Stage, arrivals


def due(seed=0, **fields):
    return arrivals(Stage(request_rate=20.0, **fields), random.Random(seed))


def test_the_same_seed_gives_the_same_arrivals():
    assert due(num_prompts=50) == due(num_prompts=50)
    assert due(num_prompts=50) != due(seed=1, num_prompts=50)


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 5.0, math.inf])
def test_the_last_arrival_is_when_the_rate_says(burstiness):
    times = due(num_prompts=200, burstiness=burstiness)
    assert len(times) == 200
    assert times[-1] == pytest.approx(10.0)
    assert times == sorted(times)


def test_burstiness_is_the_shape_of_the_gaps():
    """Of a gamma distribution the coefficient of variation is 1 / sqrt(shape)."""
    for burstiness in (0.25, 1.0, 4.0):
        times = due(num_prompts=20_000, burstiness=burstiness)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        spread = statistics.pstdev(gaps) / statistics.fmean(gaps)
        assert spread == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_like_a_clock():
    times = due(num_prompts=10, burstiness=math.inf)
    assert times == pytest.approx([0.05 * number for number in range(1, 11)])


def test_bursts_arrive_at_one_moment_and_keep_the_rate():
    times = due(num_prompts=200, burst_size=8)
    assert len(set(times)) == 25
    assert times[:8] == [times[0]] * 8
    assert times[-1] == pytest.approx(10.0)


def test_a_duration_ends_the_arrivals():
    times = due(duration_s=30.0)
    assert times[-1] < 30.0
    assert len(times) == pytest.approx(600, rel=0.15)
    assert all(one < 2.0 for one in due(num_prompts=200, duration_s=2.0))
