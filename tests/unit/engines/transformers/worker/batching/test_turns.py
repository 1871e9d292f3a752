"""Whose turn it is, without a model: places are shared by clients, then by their requests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.worker.batching.turns import Turn, Turns

One = tuple[Turn, int]


def _turns(num_places: int) -> Turns[One]:
    return Turns(num_places, lambda one: one[0])


def _put(turns: Turns[One], turn: Turn, count: int = 1) -> list[One]:
    some = [(turn, number) for number in range(count)]
    for one in some:
        turns.put(one)
    return some


def _let_in(turns: Turns[One]) -> list[One]:
    """As the batchers do; those that began, in order."""
    begun = []
    while (one := turns.next()) is not None:
        if turns.has_place(one):
            turns.begin(one)
            begun.append(one)
        elif (victim := turns.yields_to(one)) is not None:
            turns.preempt(victim)
        else:
            break
    return begun


def _by_client(some: Iterable[One]) -> Counter[str]:
    return Counter(turn.client for turn, _ in some)


def test_what_is_urgent_has_places_before_all_others_and_keeps_them() -> None:
    turns = _turns(8)
    _put(turns, Turn("a", "background", is_background=True), 4)
    _put(turns, Turn("b", "wide"), 8)
    _let_in(turns)
    urgent = [Turn("c", f"urgent{number}", is_urgent=True) for number in range(10)]
    for turn in urgent:
        _put(turns, turn)
    _let_in(turns)
    assert [turn for turn, _ in turns.running] == urgent[:8]
    _put(turns, Turn("d", "chat"))
    assert _let_in(turns) == [], "a chat waits, though its client has nothing running"
    turns.end(turns.running[0])
    assert [turn for turn, _ in _let_in(turns)] == [urgent[8]]
    for one in [*turns.running]:
        turns.end(one)
    assert {turn.client for turn, _ in _let_in(turns)} == {"a", "b", "c", "d"} - {"a"}


@pytest.mark.parametrize("is_background", [False, True])
@pytest.mark.parametrize("num_requests", [1, 2, 64])
def test_a_chat_has_a_place_at_once_beside_whatever_another_client_sends(
    num_requests: int, is_background: bool
) -> None:
    turns = _turns(64)
    for number in range(num_requests):
        _put(turns, Turn("a", f"r{number}", is_background), 128)
    _let_in(turns)
    (chat,) = _put(turns, Turn("b", "chat"))
    assert chat in _let_in(turns)
    assert len(turns.running) == 64 and len(turns) == num_requests * 128 - 63


@pytest.mark.parametrize("places", [1, 2, 64])
def test_what_runs_in_the_background_leaves_a_place_free_but_where_there_is_only_one(places: int) -> None:
    turns = _turns(places)
    _put(turns, Turn("a", "line", is_background=True), 128)
    assert len(_let_in(turns)) == max(1, places - 1)


def test_who_runs_alone_has_every_place() -> None:
    turns = _turns(64)
    _put(turns, Turn("a", "r"), 128)
    assert len(_let_in(turns)) == 64


def test_a_chat_goes_before_the_other_answers_of_its_own_client() -> None:
    turns = _turns(4)
    _put(turns, Turn("a", "wide"), 9)
    _let_in(turns)
    (chat,) = _put(turns, Turn("a", "chat"))
    assert chat in _let_in(turns)


def test_requests_of_one_client_with_one_answer_each_wait_for_each_other() -> None:
    turns = _turns(4)
    first = [_put(turns, Turn("a", f"r{number}"))[0] for number in range(4)]
    _let_in(turns)
    _put(turns, Turn("a", "late"))
    assert not _let_in(turns) and turns.running == first


def test_single_requests_of_two_clients_come_to_halves() -> None:
    turns = _turns(64)
    for client in ("a", "b"):
        for number in range(64):
            _put(turns, Turn(client, f"r{number}"))
        _let_in(turns)
    assert _by_client(turns.running) == {"a": 32, "b": 32}


def test_the_next_free_places_are_those_of_whoever_has_fewest() -> None:
    turns = _turns(8)
    _put(turns, Turn("a", "r"), 100)
    _let_in(turns)
    _put(turns, Turn("b", "r"), 100)
    _let_in(turns)
    assert _by_client(turns.running) == {"a": 7, "b": 1}, "the first at once"
    for _ in range(3):
        turns.end(next(one for one in turns.running if one[0].client == "a"))
        _let_in(turns)
    assert _by_client(turns.running) == {"a": 4, "b": 4}


def test_with_one_place_clients_take_turns() -> None:
    turns = _turns(1)
    for client in ("a", "b"):
        _put(turns, Turn(client, "r"), 3)
    order = []
    while (one := turns.next()) is not None:
        turns.begin(one)
        order.append(one[0].client)
        turns.end(one)
    assert "".join(order) in ("ababab", "bababa")


def test_the_victim_is_of_the_background_and_then_of_whoever_has_most() -> None:
    turns = _turns(8)
    _put(turns, Turn("a", "wide"), 4)
    _put(turns, Turn("b", "chat"))
    _put(turns, Turn("c", "line", is_background=True), 1)
    _let_in(turns)
    assert turns.victim() == (Turn("c", "line", True), 0)
    turns.end((Turn("c", "line", True), 0))
    assert turns.victim() == (Turn("a", "wide"), 3), "the youngest"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_everybody_comes_to_an_end_and_no_place_is_counted_twice(seed: int) -> None:
    chance = random.Random(seed)
    places = chance.choice((1, 2, 5, 16))
    turns = _turns(places)
    left: set[One] = set()
    for number in range(chance.randint(1, 12)):
        turn = Turn(chance.choice("abc"), f"r{number}", chance.random() < 0.3)
        left |= set(_put(turns, turn, chance.choice((1, 1, 3, 20))))
        _let_in(turns)
        background = sum(turn.is_background for turn, _ in turns.running)
        assert len(turns.running) <= places and background <= max(1, places - 1)
        assert len(set(turns.running)) + len(set(turns)) == len(left)
        if turns.running and chance.random() < 0.5:
            gone = chance.choice([*turns.running, *turns])
            turns.end(gone)
            left.remove(gone)
    while left:
        _let_in(turns)
        one = chance.choice(turns.running)
        turns.end(one)
        left.remove(one)
    assert not turns.running and not len(turns)
