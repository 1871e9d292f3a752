"""Background responses are bounded in bytes and time, and seen by their key alone."""

from __future__ import annotations

import pytest

from qserve.gateway.background.growing import GrowingResponse
from qserve.gateway.background.store import ResponseStore
from qserve.units import KIB, MIB
from qserve.wire.errors import ApiError


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return ResponseStore(MIB, 60.0, clock)


def added(store, name, share="a", num_bytes=0, owner=None):
    return store.add(GrowingResponse(name, 0, {}), share if owner is None else owner, share, num_bytes)


def end(store, kept):
    kept.response.cancel()
    store.count(kept)


def names(store):
    return {name for name in "abcdefgh" if any(_has(store, name, owner) for owner in "abcdefgh")}


def _has(store, name, owner):
    try:
        return store.find(name, owner) is not None
    except ApiError:
        return False


def test_another_key_finds_nothing_and_is_told_no_more_than_of_an_unknown_id(store):
    added(store, "a", owner="one")
    assert store.find("a", "one").response.id == "a"
    with pytest.raises(ApiError) as foreign:
        store.find("a", "other")
    store.remove(store.find("a", "one"))
    with pytest.raises(ApiError) as unknown:
        store.find("a", "other")
    assert foreign.value.status == 404 and foreign.value.fields == unknown.value.fields


def test_a_response_is_forgotten_so_long_after_its_end_and_none_that_runs(store, clock):
    first, second = added(store, "a"), added(store, "b")
    clock.now_s += 1000
    end(store, first)
    clock.now_s += 59.9
    store.expire()
    assert len(store) == 2
    clock.now_s += 0.1
    store.expire()
    assert len(store) == 1 and store.find("b", "a") is second
    store.remove(second)
    assert store.num_bytes == 0 and not store._held


def test_what_ran_is_counted_until_it_ends(store):
    one = added(store, "a", num_bytes=100 * KIB)
    assert store.num_bytes >= 132 * KIB
    end(store, one)
    assert 0 < store.num_bytes < 16 * KIB


def test_nobody_holds_more_than_is_free_and_the_error_says_what_to_do(store):
    added(store, "a", num_bytes=450 * KIB)
    with pytest.raises(ApiError, match=r"1 MiB that they may \(qserve up --keep-responses-mib\)") as full:
        added(store, "b", num_bytes=100 * KIB)
    assert full.value.status == 429 and full.value.retry_after_s
    added(store, "c", share="other", num_bytes=100 * KIB)


def test_ended_ones_make_room_the_oldest_first(store, clock):
    for name in "abc":
        kept = added(store, name)
        kept.response.take(b'data: {"type": "x", "text": "' + b"y" * 100_000 + b'"}')
        end(store, kept)
        clock.now_s += 1
    added(store, "d", num_bytes=450 * KIB)
    assert names(store) == {"b", "c", "d"}


def test_one_that_runs_never_makes_room(store):
    added(store, "a", num_bytes=400 * KIB)
    with pytest.raises(ApiError):
        added(store, "b", num_bytes=400 * KIB)
    assert names(store) == {"a"}


def test_others_make_room_only_for_who_holds_less(store):
    large, small = added(store, "a", "large"), added(store, "b", "small")
    large.response.take(b'data: {"type": "x", "text": "' + b"y" * 450_000 + b'"}')
    small.response.take(b'data: {"type": "x", "text": "' + b"y" * 100_000 + b'"}')
    end(store, large)
    end(store, small)
    running = added(store, "c", "large")
    assert not store.has_room(running, 900 * KIB)
    assert len(store) == 2, "its own went, the small one's stayed"


def test_bytes_follow_the_response_and_a_removed_one_counts_no_more(store):
    kept = added(store, "a")
    before = store.num_bytes
    kept.response.take(b'data: {"type": "x", "text": "yyyy"}')
    store.count(kept)
    assert store.num_bytes == kept.response.num_bytes + kept.running_bytes > before
    store.remove(kept)
    store.remove(kept)
    store.count(kept)
    assert store.num_bytes == 0
