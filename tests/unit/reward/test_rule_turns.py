"""Turns of rules: whose response is next, and what becomes of a client's when it leaves."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import psutil
import pytest

from qserve.reward.rules import make_rule
from qserve.reward.rules.pool import RulePool
from qserve.worker.turns import Turns
from tests.unit.reward.code.programs import needs_sandbox

ENDLESS, QUICK = ("a" * 60 + "b", ""), ("aaa", "")
ITEM_S = 1.0


def _order(turns: Turns[str], seconds: dict[str, float]) -> list[str]:
    """All that waits, each taken when the one before is done; `seconds` of an item by its client."""
    order = []
    while turns:
        item = turns.take()
        assert item is not None
        order.append(item)
        turns.done(item[0], item[:2], seconds.get(item[0], 0.1))
    return order


def test_clients_take_turns_and_so_do_their_requests() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", "a1", ["a1x", "a1y", "a1z"])
    turns.put("a", "a2", ["a2x"])
    turns.put("b", "b1", ["b1x", "b1y"])
    assert _order(turns, {}) == ["a1x", "b1x", "a2x", "b1y", "a1y", "a1z"]


def test_who_takes_long_waits_long() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", "a1", ["a1x", "a1y"])
    turns.put("b", "b1", ["b1x"] * 8)
    assert _order(turns, {"a": 3.0, "b": 0.5}).index("a1y") == 7


def test_one_that_comes_late_is_neither_behind_nor_paid_for_its_absence() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", "a1", ["a1x"] * 40)
    for _ in range(20):
        turns.done("a", turns.take()[:2], 1.0)
    turns.put("b", "b1", ["b1x"] * 3)
    assert _order(turns, {"a": 1.0, "b": 1.0})[:6] in (["a1x", "b1x"] * 3, ["b1x", "a1x"] * 3)


def test_of_several_places_one_client_does_not_get_all() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", "a1", ["a1x"] * 9)
    turns.put("b", "b1", ["b1x"] * 9)
    assert sorted(turns.take() for _ in range(4)) == ["a1x", "a1x", "b1x", "b1x"]


def test_a_place_that_is_kept_free_is_for_a_client_that_holds_none() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", "a1", ["a1x"] * 3)
    turns.put("a", "a2", ["a2x"])
    assert turns.take() is not None
    assert turns.take(of_idle=True) is None
    turns.put("b", "b1", ["b1x"] * 2)
    assert [turns.take(of_idle=True) for _ in range(2)] == ["b1x", None]
    turns.done("b", "b1", 9.0)
    assert turns.take(of_idle=True) == "b1x"


def test_what_is_dropped_is_forgotten_and_what_runs_is_still_counted() -> None:
    turns: Turns[str] = Turns()
    turns.put("a", "a1", ["a1x"] * 9)
    taken = turns.take()
    turns.drop(lambda item: item[0] == "a")
    assert not turns
    turns.done("a", taken[:2], 5.0)
    assert not turns


@pytest.fixture
async def pool() -> AsyncIterator[RulePool]:
    one = RulePool([make_rule("regex", {"pattern": "(a+)+$"}, "here")], item_s=ITEM_S)
    await asyncio.gather(*(asyncio.to_thread(process.start) for process in one._processes))
    yield one
    one.close()


async def test_one_response_behind_forty_that_never_end(pool: RulePool) -> None:
    """Their client leaves; then nothing of it is left."""
    many = [asyncio.create_task(pool.verdicts("many", number, 0, [ENDLESS] * 20)) for number in range(2)]
    await asyncio.sleep(0.1)
    began_s = time.monotonic()
    assert await pool.verdicts("one", 1, 0, [QUICK]) == [1.0]
    assert time.monotonic() - began_s < 5 * ITEM_S, "in turn, and not after 40 of them"
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    began_s = time.monotonic()
    assert await pool.verdicts("one", 2, 0, [QUICK] * 4) == [1.0] * 4
    assert time.monotonic() - began_s < 15 * ITEM_S
    assert not pool._turns
    await asyncio.gather(*pool._running)
    busy = [one for one in psutil.Process().children(recursive=True) if one.cpu_percent(0.2) > 50]
    assert not busy


async def test_a_program_ends_with_its_client() -> None:
    needs_sandbox()
    one = RulePool([make_rule("code", {"timeout_s": 4}, "here")])
    try:
        await asyncio.to_thread(one._processes[-1].start)
        running = asyncio.create_task(one.verdicts("a", 1, 0, [("while True: pass", "pass")]))
        until_s = time.monotonic() + 60
        while not (rules := _with_programs()) and time.monotonic() < until_s:
            await asyncio.sleep(0.02)
        running.cancel()
        left_s = time.monotonic()
        while (_with_programs() or any(one.is_running() for one in rules)) and time.monotonic() < left_s + 30:
            await asyncio.sleep(0.02)
        assert rules and not _with_programs()
        assert not any(one.is_running() for one in rules), "the program's limit ended it: its rule goes on"
    finally:
        one.close()


def _with_programs() -> list[psutil.Process]:
    """The rules' processes of this one that have a sandbox running; other tests have their own."""
    return [one for one in psutil.Process().children() if "bwrap" in _names_below(one)]


def _names_below(process: psutil.Process) -> set[str]:
    names = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in process.children(recursive=True):
            names.add(one.name())
    return names


async def test_several_run_at_once_and_a_slow_one_fails_alone(pool: RulePool) -> None:
    slow, quick = await asyncio.gather(
        pool.verdicts("a", 1, 0, [QUICK, ENDLESS, QUICK]), pool.verdicts("b", 1, 0, [QUICK] * 5)
    )
    assert slow[0] == slow[2] == 1.0 and quick == [1.0] * 5
    assert slow[1] == f"the rule did not return within {ITEM_S:g} s"


async def test_a_process_that_was_ended_at_its_start_is_no_fault_of_the_next(pool: RulePool) -> None:
    pool._processes[-1].close()
    leaving = [asyncio.create_task(pool.verdicts("a", n, 0, [QUICK])) for n in range(2)]
    await asyncio.sleep(0.05)
    for task in leaving:
        task.cancel()
    assert await pool.verdicts("b", 1, 0, [QUICK] * 6) == [1.0] * 6
