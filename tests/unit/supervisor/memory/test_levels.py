"""What is done as memory runs out and comes back: thresholds, pressure, swap, hysteresis, and who is ended."""

from __future__ import annotations

import pytest

from qserve.detect.free_memory import FreeMemory, MemoryPool
from qserve.planner.memory.reserve import Reserve
from qserve.supervisor.memory.levels import Held, MemoryLevel, MemoryLevels, whom_to_end
from qserve.units import GIB, MIB

TOTAL = 50 * GIB
RESERVE = Reserve.of(TOTAL, shares_gpu=False)  # 1 GiB refuses
CLEAR, REFUSE, DRAIN, END = MemoryLevel


def now(available: int, stalled: float = 0.0, swap: int = 0, cgroup: int | None = None) -> FreeMemory:
    pools = [MemoryPool("machine", TOTAL, available, swap)]
    pools += [MemoryPool("cgroup pod", 8 * GIB, cgroup)] if cgroup is not None else []
    return FreeMemory(tuple(pools), stalled)


def first(seen: FreeMemory, *, shares_gpu: bool = False, asked: int | None = None) -> MemoryLevel:
    return MemoryLevels(shares_gpu=shares_gpu, asked_bytes=asked).see(seen, 0.0)


@pytest.mark.parametrize(
    ("available", "level"),
    [
        (RESERVE.refuse_bytes, CLEAR),
        (RESERVE.refuse_bytes - 1, REFUSE),
        (RESERVE.drain_bytes - 1, DRAIN),
        (RESERVE.end_bytes, DRAIN),
        (RESERVE.end_bytes - 1, END),
    ],
)
def test_the_steps(available: int, level: MemoryLevel) -> None:
    assert first(now(available)) is level


def test_a_gpu_in_the_ram_begins_sooner() -> None:
    assert first(now(3 * GIB), shares_gpu=True) is DRAIN
    assert first(now(2 * GIB), shares_gpu=True) is END
    assert first(now(2 * GIB)) is CLEAR


def test_its_memory_counts_in_no_cgroup() -> None:
    assert first(now(20 * GIB, cgroup=500 * MIB), shares_gpu=True) is CLEAR


def test_the_scarcer_of_two_pools_decides() -> None:
    assert first(now(20 * GIB, cgroup=100 * MIB)) is END
    levels = MemoryLevels(shares_gpu=False)
    assert levels.why(now(20 * GIB, cgroup=100 * MIB)) == "the cgroup pod has 100 MiB of 8.00 GiB free"
    assert levels.until(now(20 * GIB, cgroup=100 * MIB)) == "until 196.6 MiB are free"


def test_waiting_for_memory_counts_a_step() -> None:
    assert first(now(20 * GIB, stalled=0.24)) is CLEAR
    assert first(now(20 * GIB, stalled=0.25)) is REFUSE
    assert first(now(RESERVE.drain_bytes - 1, stalled=0.3)) is END
    levels = MemoryLevels(shares_gpu=False)
    assert "wait for memory 30% of the time" in levels.why(now(20 * GIB, stalled=0.3))
    assert levels.until(now(20 * GIB, stalled=0.3)) == "until they wait no more"


def test_free_swap_takes_the_last_step_away_unless_processes_wait() -> None:
    assert first(now(0, swap=4 * GIB)) is DRAIN
    assert first(now(0, swap=4 * GIB, stalled=0.3)) is END
    assert first(now(0, swap=4 * GIB), shares_gpu=True) is END, "its memory can't be swapped out"


def test_what_somebody_asked_for() -> None:
    assert first(now(9 * GIB), asked=10 * GIB) is REFUSE
    assert first(now(GIB // 2), asked=GIB // 4) is CLEAR


def test_it_recovers_above_the_threshold_and_after_a_while() -> None:
    levels = MemoryLevels(shares_gpu=False)
    between = RESERVE.refuse_bytes + MIB
    assert levels.see(now(0), 0.0) is END
    assert levels.see(now(between), 1.0) is REFUSE, "above the first threshold, and not yet where it recovers"
    assert levels.see(now(20 * GIB), 2.0) is REFUSE
    assert levels.see(now(between), 4.0) is REFUSE, "memory was there for two seconds only"
    assert levels.see(now(20 * GIB), 5.0) is REFUSE
    assert levels.see(now(20 * GIB), 7.9) is REFUSE
    assert levels.see(now(20 * GIB), 8.0) is CLEAR


def test_it_does_not_recover_while_processes_wait() -> None:
    levels = MemoryLevels(shares_gpu=False)
    levels.see(now(0), 0.0)
    assert [levels.see(now(20 * GIB, stalled=0.1), when) for when in (1.0, 60.0)] == [REFUSE, REFUSE]


@pytest.mark.parametrize(
    ("available", "shares_gpu", "pause"), [(49 * GIB, False, 1.0), (4 * GIB, False, 0.5), (0, False, 0.1)]
)
def test_it_looks_as_often_as_memory_can_run_out(available: int, shares_gpu: bool, pause: float) -> None:
    assert MemoryLevels(shares_gpu=shares_gpu).pause_s(now(available)) == pytest.approx(pause)


def test_a_gpu_fills_it_faster() -> None:
    room = now(int(0.075 * TOTAL) + 7 * GIB)
    assert MemoryLevels(shares_gpu=True).pause_s(room) == pytest.approx(0.5, rel=0.01)
    assert MemoryLevels(shares_gpu=False).pause_s(room) == 1.0


def test_who_outgrew_its_plan_is_ended_else_the_largest() -> None:
    large, grown = Held("chat", 90 * GIB, 88 * GIB), Held("reward", 9 * GIB, 5 * GIB)
    assert whom_to_end([large, grown]) is grown
    as_planned = Held("reward", 5 * GIB, 5 * GIB)
    assert whom_to_end([as_planned, large]) is large
    assert str(grown) == "reward holds 9.00 GiB (planned 5.00 GiB)"
