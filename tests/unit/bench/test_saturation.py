"""Where more load brings nothing more, and why: from stages whose truth is known."""

from __future__ import annotations

import pytest

from qserve.bench.load import Stage
from qserve.bench.metrics import figures_of
from qserve.bench.saturation import is_saturated, saturation_of
from tests.unit.bench.builders import failed, figures, record, run_of

UNIT = "output tokens/s"


def test_a_queue_is_told_from_computing():
    """TPOT stays, TTFT grows: requests wait for a place."""
    seen = saturation_of([figures(1, 0.1, 0.02, 50), figures(8, 0.11, 0.02, 400), figures(16, 0.8, 0.02, 410)], UNIT)
    assert seen.stage == "8 at once"
    assert seen.waiting_share == pytest.approx(1.0)
    assert "Saturates at 8 at once: 400 output tokens/s; 16 at once brings 410." in seen.sentence
    assert "waits in a queue" in seen.sentence


def test_computing_is_told_from_a_queue():
    """TTFT stays, TPOT grows: each step has more to compute."""
    seen = saturation_of([figures(1, 0.1, 0.02, 50), figures(8, 0.1, 0.1, 70), figures(16, 0.11, 0.2, 71)], UNIT)
    assert seen.waiting_share < 0.1
    assert "each step computes more" in seen.sentence


def test_both_alike():
    seen = saturation_of([figures(1, 0.1, 0.02, 50), figures(2, 0.3, 0.04, 51)], UNIT)
    assert "queue and compute alike" in seen.sentence


def test_an_end_that_was_not_reached_is_said():
    seen = saturation_of([figures(1, 0.1, 0.02, 50), figures(2, 0.1, 0.02, 100)], UNIT)
    assert seen.stage == ""
    assert seen.sentence.startswith("Not saturated at 2 at once: 100 output tokens/s, 100 % more than at 1 at once.")
    assert "no longer than at the lightest load" in seen.sentence


def test_stages_may_come_in_any_order():
    stages = [figures(16, 0.8, 0.02, 410), figures(1, 0.1, 0.02, 50), figures(8, 0.11, 0.02, 400)]
    assert saturation_of(stages, UNIT).stage == "8 at once"


def test_one_stage_has_nothing_to_say():
    assert saturation_of([figures(1, 0.1, 0.02, 50)], UNIT) is None


def open_stage(rate, answered_per_s, num=40):
    records = [
        record(start_s=n / rate, end_s=(n + 1) / answered_per_s - n / rate, chunk_s=(0.01, 0.02), index=n)
        for n in range(num)
    ]
    return figures_of(run_of(records, Stage(request_rate=rate), num / answered_per_s), {})


def test_an_open_loop_says_what_it_keeps_up_with():
    seen = saturation_of([open_stage(4.0, 4.0), open_stage(8.0, 4.0)], UNIT)
    assert seen.sentence.startswith("Keeps up with 4/s; at 8/s it answers 50 % of what arrives, and the queue")
    assert seen.stage == "8/s"


def test_requests_that_fail_are_not_a_queue_that_grows():
    records = [
        failed(start_s=n / 8, index=n) if n % 2 else record(start_s=n / 8, end_s=0.25, chunk_s=(0.01, 0.02), index=n)
        for n in range(40)
    ]
    refusing = figures_of(run_of(records, Stage(request_rate=8.0), 5.0), {})
    sentence = saturation_of([open_stage(4.0, 4.0), refusing], UNIT).sentence
    assert "at 8/s it answers 50 % of what arrives; the rest fails" in sentence


def test_a_sweep_ends_when_doubling_brings_nothing_or_most_fails():
    rising = [figures(1, 0.1, 0.02, 50), figures(2, 0.1, 0.02, 95)]
    assert not is_saturated([])
    assert not is_saturated(rising)
    once = [*rising, figures(4, 0.2, 0.02, 97)]
    assert not is_saturated(once)  # one stage may have had bad luck
    assert is_saturated([*once, figures(8, 0.4, 0.02, 98)])
    assert not is_saturated([*once, figures(8, 0.4, 0.02, 190)])
    assert is_saturated([figures_of(run_of([record(), failed(), failed()]), {})])
