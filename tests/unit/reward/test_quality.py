"""Calibration and length bias, on rewards whose truth is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.reward.evaluation.calibration import calibration
from qserve.reward.evaluation.length_bias import length_bias


def margins_of(scale, count=20_000):
    """Margins of a model that is right as often as its sigmoid says, told `scale` times too sure."""
    rng = random.Random(0)
    for _ in range(count):
        margin = abs(rng.gauss(0, 2))
        is_right = rng.random() < 1 / (1 + math.exp(-margin))
        yield scale * (margin if is_right else -margin)


def test_a_model_that_knows_how_sure_it_is_has_no_error():
    honest, boastful = calibration(list(margins_of(1))), calibration(list(margins_of(5)))
    assert honest.error < 0.02 < 0.1 < boastful.error
    assert honest.log_loss < boastful.log_loss
    for one in honest.bins:
        assert one.low <= one.confidence <= one.high
        if one.count > 500:
            assert one.accuracy == pytest.approx(one.confidence, abs=0.05)


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=50))
def test_any_margins_fill_bins(margins):
    found = calibration(margins)
    assert sum(one.count for one in found.bins) == len(margins)
    assert 0 <= found.error <= 1 and found.log_loss >= 0


def test_ties_are_half_right():
    (only,) = calibration([0.0, 0.0]).bins
    assert (only.confidence, only.accuracy) == (0.5, 0.5)


def test_a_model_that_likes_length_is_found_out():
    rng = random.Random(1)
    lengths = [[rng.randrange(5, 500), rng.randrange(5, 500)] for _ in range(500)]
    offsets = [rng.gauss(0, 1000) for _ in lengths]
    by_length = [[offset + one for one in pair] for offset, pair in zip(offsets, lengths, strict=True)]
    found = length_bias(by_length, lengths, [1] * 500)
    assert found.correlation == pytest.approx(1, abs=1e-3), "a prompt's own level does not count"
    assert (found.accuracy_longer, found.accuracy_shorter) == (1.0, 0.0)
    blind = length_bias([[1.0, 0.0]] * 500, lengths, [1] * 500)
    assert abs(blind.correlation) < 0.1 and blind.accuracy_longer == blind.accuracy_shorter == 1.0


def test_equal_lengths_say_nothing():
    found = length_bias([[1.0, 0.0]], [[5, 5]], [1])
    assert math.isnan(found.correlation)
    assert (found.num_longer, found.num_shorter, found.accuracy_longer) == (0, 0, None)
