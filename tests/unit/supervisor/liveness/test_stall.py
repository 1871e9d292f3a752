"""A worker is hung when requests wait for it and it shows no sign of progress; nothing else counts as a hang."""

from __future__ import annotations

import pytest

from qserve.supervisor.liveness.stall import INTERVAL_S, Observation, StallWatch
from qserve.worker.heartbeat import Progress

_QUIET = Observation(num_awaited=1, num_pieces=7, progress=None, is_working=False)


def _seconds_until_hung(observations):
    watch = StallWatch()
    for number, seen in enumerate(observations):
        if watch.see(seen) is not None:
            return number * INTERVAL_S
    return None


def test_less_than_ten_seconds_without_any_sign_are_enough():
    assert _seconds_until_hung([_QUIET] * 100) + INTERVAL_S <= 10


@pytest.mark.parametrize(
    "changes", [{"num_awaited": 0}, {"is_working": True}], ids=["nobody waits", "a long prefill computes"]
)
def test_what_goes_on_for_long_and_is_no_hang(changes):
    seen = Observation(**{**_QUIET.__dict__, **changes})
    assert _seconds_until_hung([seen] * 250) is None


def test_a_piece_now_and_then_is_progress():
    watch = StallWatch()
    for number in range(1000):
        assert watch.see(Observation(1, number // 3, None, False)) is None


def test_a_step_now_and_then_is_progress_although_nothing_is_sent():
    """Forty requests of long prompts: no token for minutes, and each step is counted."""
    watch = StallWatch()
    for number in range(1000):
        progress = Progress(number // 3, 40) if watch.is_suspicious else None
        assert watch.see(Observation(40, 0, progress, False)) is None


def test_computing_without_a_step_is_a_hang_after_ten_minutes_where_steps_are_counted():
    seen = Observation(1, 7, Progress(5, 1), is_working=True)
    assert _seconds_until_hung([seen] * 400) == 600
    assert _seconds_until_hung([Observation(1, 7, None, is_working=True)] * 400) is None


def test_the_time_begins_with_the_request():
    idle = Observation(0, 7, None, False)
    assert _seconds_until_hung([idle] * 50 + [_QUIET] * 50) == 50 * INTERVAL_S + _seconds_until_hung([_QUIET] * 50)
