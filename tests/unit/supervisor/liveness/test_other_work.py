"""What other programs took of the processors: a service's own work is none of it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from qserve.supervisor.liveness.other_work import OtherWork, Sample, _busy_s, _own_s, share_between

BURN_S = 0.15


def test_a_share_is_of_all_processors_and_of_the_time_that_passed() -> None:
    assert share_between(Sample(100.0, 5.0), Sample(110.0, 15.0), 2) == 0.5
    assert share_between(Sample(100.0, 5.0), Sample(110.0, 65.0), 2) == 1.0
    assert share_between(Sample(100.0, 5.0), Sample(110.0, 4.9), 2) == 0.0
    assert share_between(Sample(100.0, 5.0), Sample(100.0, 6.0), 2) == 0.0


def test_it_is_counted_from_the_last_sample_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": 0.0, "others": 0.0}
    monkeypatch.setattr("qserve.supervisor.liveness.other_work.time.time", lambda: clock["now"])
    monkeypatch.setattr("qserve.supervisor.liveness.other_work._busy_s", lambda: clock["others"])
    monkeypatch.setattr("qserve.supervisor.liveness.other_work._own_s", lambda: 0.0)
    monkeypatch.setattr("qserve.supervisor.liveness.other_work.psutil.cpu_count", lambda: 2)
    others = OtherWork()
    for now, seconds in ((10.0, 20.0), (20.0, 20.0), (30.0, 30.0)):
        clock |= {"now": now, "others": seconds}
        others.note()
    assert others.share_since(-5.0) == 0.5  # from the first there is
    assert others.share_since(15.0) == 0.25
    assert others.share_since(20.0) == 0.5


def test_ones_own_work_is_counted_with_that_of_children_that_have_ended() -> None:
    before, machine = _own_s(), _busy_s()
    until = time.process_time() + BURN_S
    while time.process_time() < until:
        pass
    burn = f"import time\nwhile time.process_time() < {BURN_S}: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert _own_s() - before > 1.5 * BURN_S
    assert _busy_s() - machine > BURN_S
