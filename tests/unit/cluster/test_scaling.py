"""How many replicas a load wants: up within seconds, down after a while, never beyond the bounds."""

from __future__ import annotations

import pytest

from qserve.cluster.scaling import Load, Scaling
from qserve.cluster.settings import Bounds
from qserve.errors import UsageError

PLACES = 4
NOTHING = Load(0, 0)


def requests(count: int, tokens_each: int = 100) -> Load:
    return Load(count * tokens_each, count)


class Service:
    """Replicas that are there as soon as they are wanted."""

    def __init__(self, fewest: int, most: int, down_after_s: float = 60.0) -> None:
        self.scaling = Scaling(Bounds(fewest, most, down_after_s), PLACES)
        self.now_s = 0.0
        self.num_running = fewest

    def under(self, load: Load, seconds: float) -> int:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.num_running = self.scaling.wanted(self.now_s, self.num_running, load)
        return self.num_running


def test_a_full_replica_gets_others_within_seconds() -> None:
    service = Service(1, 8)
    assert service.under(requests(2), 30) == 1
    assert service.under(requests(12), 4) == 5  # three times what fills one, at 60 % each


def test_a_load_of_a_moment_starts_nothing() -> None:
    service = Service(1, 8)
    assert service.under(requests(12), 1) == 1
    assert service.under(NOTHING, 1) == 1


def test_one_goes_after_a_while_and_the_next_after_as_long_again() -> None:
    service = Service(1, 3, down_after_s=60.0)
    assert service.under(requests(30), 4) == 3
    assert service.under(NOTHING, 59) == 3
    assert service.under(NOTHING, 3) == 2
    assert service.under(NOTHING, 50) == 2
    assert service.under(NOTHING, 15) == 1
    assert service.under(NOTHING, 300) == 1


def test_none_is_ended_while_another_one_is_missing() -> None:
    scaling = Scaling(Bounds(1, 3, down_after_s=10.0), PLACES)
    assert {scaling.wanted(at, 3, NOTHING, are_ready=False) for at in range(100)} == {3}
    assert scaling.wanted(105.0, 3, NOTHING) == 3  # the wait begins when all are ready
    assert scaling.wanted(116.0, 3, NOTHING) == 2


def test_a_load_that_comes_back_begins_the_wait_anew() -> None:
    service = Service(1, 2, down_after_s=60.0)
    assert service.under(requests(12), 4) == 2
    for _ in range(5):
        assert service.under(NOTHING, 40) == 2
        assert service.under(requests(4), 2) == 2


def test_bounds_hold_whatever_the_load() -> None:
    service = Service(2, 3)
    assert service.under(NOTHING, 1000) == 2
    assert service.under(requests(1000), 10) == 3


def test_long_prompts_count_for_more_than_usual_ones() -> None:
    service = Service(1, 8)
    service.under(requests(1), 120)
    assert service.under(requests(2, tokens_each=1000), 4) > 2


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="--min-replicas 4 is more than --max-replicas 2"):
        Bounds(4, 2)
