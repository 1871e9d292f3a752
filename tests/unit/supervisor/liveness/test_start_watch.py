"""A start may take as long as it likes, as long as something happens."""

from __future__ import annotations

from qserve.supervisor.liveness.start_watch import StartWatch, limit_of


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _stuck_after_s(phase, lines_of=lambda now_s: 0, bytes_of=lambda now_s: 0, until_s=4000, limit_s=None):
    clock = Clock()
    watch = StartWatch(limit_s, clock)
    while clock.now_s < until_s:
        if watch.see(phase, lines_of(clock.now_s), lambda: bytes_of(clock.now_s)) is not None:
            return clock.now_s
        clock.now_s += 1
    return None


def test_silence_ends_a_start_by_its_phase():
    for phase in ("starting the engine's processes", "loading weights", "something new"):
        silent_s = _stuck_after_s(phase)
        assert limit_of(phase) <= silent_s <= limit_of(phase) + 10


def test_a_limit_of_the_users_own_holds_for_every_phase():
    for phase in ("starting the engine's processes", "compiling"):
        assert 40 <= _stuck_after_s(phase, limit_s=40) <= 50


def test_compiling_may_be_silent_longer_than_finding_each_other():
    assert limit_of("compiling kernels") == limit_of("compiling") > limit_of("starting the engine's processes")


def test_a_line_now_and_then_is_progress():
    assert _stuck_after_s("loading weights", lines_of=lambda now_s: int(now_s // 200)) is None


def test_a_slow_disk_is_progress():
    assert _stuck_after_s("loading weights", bytes_of=lambda now_s: int(now_s // 30) * 4096) is None
