"""Which model is loaded next, and which leave for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.planner.residency.footprint import RAM, Budget, Footprint
from qserve.planner.residency.schedule import Change, ModelView, Rules, can_ever_load, next_change

BUDGET, RULES, NOW = Budget({RAM: 100}), Rules(window_s=10), 1000.0


def view(name: str, rest: int, *, starting: int = 0, load_s: float = 5.0, **state: object) -> ModelView:
    footprint = Footprint(name, {RAM: rest}, {RAM: starting} if starting else {}, load_s)
    return ModelView(footprint, **state)  # type: ignore[arg-type]


def resident(name: str, rest: int, *, idle_s: float = 100.0, **state: object) -> ModelView:
    given = {"is_resident": True, "resident_since_s": 0.0, "idle_since_s": NOW - idle_s} | state
    return view(name, rest, **given)  # type: ignore[arg-type]


def waiting(name: str, rest: int, since_s: float = 1.0, **state: object) -> ModelView:
    return view(name, rest, is_busy=True, waiting_since_s=NOW - since_s, **state)  # type: ignore[arg-type]


def changed(*models: ModelView, rules: Rules = RULES) -> Change | None:
    return next_change(models, BUDGET, rules, NOW)


def test_nothing_changes_while_nobody_waits() -> None:
    assert changed(resident("a", 50), view("b", 50)) is None


def test_there_is_room_beside() -> None:
    assert changed(resident("a", 50), waiting("b", 50)) == Change(load="b")


def test_room_at_rest_is_not_enough_to_start() -> None:
    assert changed(resident("a", 50), waiting("b", 40, starting=20)) == Change(("a",), "b")


def test_the_least_worth_leaves() -> None:
    """Worth is the next load's seconds by priority, over those of its idleness."""
    old, fresh = resident("old", 50, idle_s=500), resident("fresh", 50, idle_s=5)
    assert changed(fresh, old, waiting("c", 50)) == Change(("old",), "c")
    slow = replace(old, footprint=replace(old.footprint, load_s=1000))
    assert changed(fresh, slow, waiting("c", 50)) == Change(("fresh",), "c"), "a slow one is worth keeping"
    assert changed(fresh, replace(old, priority=1000), waiting("c", 50)) == Change(("fresh",), "c")


def test_no_more_leave_than_need() -> None:
    small, large = resident("small", 20, idle_s=500), resident("large", 60, idle_s=5)
    assert changed(small, large, waiting("c", 70)) == Change(("large",), "c")
    assert changed(small, large, waiting("c", 30)) == Change(("small",), "c")
    assert changed(small, large, waiting("c", 90)) == Change(("small", "large"), "c")


def test_a_model_with_requests_has_its_window() -> None:
    busy = resident("a", 60, is_busy=True, resident_since_s=NOW - 9)
    assert changed(busy, waiting("b", 60)) is None
    assert changed(replace(busy, resident_since_s=NOW - 10), waiting("b", 60)) == Change(("a",), "b")
    assert changed(replace(busy, is_busy=False, idle_since_s=NOW), waiting("b", 60)) == Change(("a",), "b")


def test_a_window_that_is_not_given_is_twice_what_the_other_takes_to_load() -> None:
    busy = resident("a", 60, is_busy=True, resident_since_s=NOW - 39)
    assert changed(busy, waiting("b", 60, load_s=20), rules=Rules()) is None
    assert changed(busy, waiting("b", 60, load_s=19), rules=Rules()) == Change(("a",), "b")
    assert Rules().window_of(Footprint("c", {}, load_s=0.1)) == 5


def test_the_one_that_waits_longest_is_next_and_is_not_overtaken() -> None:
    busy = resident("a", 60, is_busy=True, resident_since_s=NOW)
    assert changed(busy, waiting("b", 60, 5), waiting("c", 70, 3)) is None, "b waits for the window, and c behind it"
    there = resident("a", 60)
    assert changed(there, waiting("b", 60, 5), waiting("c", 70, 3)) == Change(("a",), "b")
    assert changed(there, waiting("b", 60, 5), waiting("c", 70, 3, priority=2)) == Change(("a",), "c")
    assert changed(busy, waiting("b", 60, 5), waiting("c", 40, 3)) == Change(load="c"), "there is room beside"


def test_pinned_models_stay() -> None:
    pinned = resident("a", 60, is_pinned=True, ttl_s=1)
    assert changed(pinned, waiting("b", 60)) is None
    assert not can_ever_load(waiting("b", 60), [pinned], BUDGET)
    assert can_ever_load(waiting("b", 40), [pinned], BUDGET)


def test_idle_models_leave_after_their_time() -> None:
    assert changed(resident("a", 60, idle_s=59, ttl_s=60)) is None
    assert changed(resident("a", 60, idle_s=60, ttl_s=60)) == Change(("a",))
    assert changed(resident("a", 60, idle_s=60, ttl_s=60, is_busy=True)) is None


def test_a_start_that_failed_is_not_tried_at_once() -> None:
    assert changed(resident("a", 60), waiting("b", 60, may_load=False)) is None


@pytest.mark.parametrize("num_models", [2, 3, 5])
def test_no_model_starves(num_models: int) -> None:
    """All are always asked for, one fits: each is served in its turn."""
    views = {str(at): waiting(str(at), 60, since_s=0) for at in range(num_models)}
    served: list[str] = []
    now_s = NOW
    for _ in range(10 * num_models):
        now_s += 10
        change = next_change(list(views.values()), BUDGET, RULES, now_s)
        assert change is not None and change.load is not None
        for name in change.unload:
            views[name] = replace(views[name], is_resident=False, waiting_since_s=now_s)
        views[change.load] = replace(
            views[change.load], is_resident=True, waiting_since_s=None, resident_since_s=now_s, idle_since_s=now_s
        )
        served.append(change.load)
        assert sum(one.is_resident for one in views.values()) == 1
    assert {served.count(name) for name in views} == {10}
