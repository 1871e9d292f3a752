"""What keys have left of their minutes and of the day, at given times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.gateway.keys.budgets import Budgets, Spent
from qserve.gateway.keys.entries import KeyEntry
from qserve.wire.errors import ApiError

DAY_S = 86_400


class Clock:
    def __init__(self) -> None:
        self.now_s = 20_000.0 * DAY_S + 3600

    def __call__(self) -> float:
        return self.now_s


def entry(**limits: int) -> KeyEntry:
    return KeyEntry("alice", "a" * 64, **limits)


def refused(budgets: Budgets, one: KeyEntry, num_tokens: int = 1) -> ApiError:
    with pytest.raises(ApiError) as raised:
        budgets.begin(one, num_tokens)
    assert raised.value.status == 429
    return raised.value


def row(budgets: Budgets, one: KeyEntry) -> dict[str, object]:
    (found,) = budgets.document([one])
    return found


def test_requests_of_a_minute_come_back_one_by_one() -> None:
    clock = Clock()
    budgets, one = Budgets(clock, {}), entry(requests_per_minute=6)
    for _ in range(6):
        budgets.end("alice", budgets.begin(one, 10), Spent(1, 1))
    error = refused(budgets, one)
    assert (error.code, error.retry_after_s) == ("rate_limit_exceeded", 10)
    assert "6 requests a minute" in error.message and "in 10 s" in error.message
    clock.now_s += 9
    assert refused(budgets, one).retry_after_s == 1
    clock.now_s += 1
    budgets.begin(one, 10)
    refused(budgets, one)
    clock.now_s += 3600
    for _ in range(6):
        budgets.begin(one, 10)
    refused(budgets, one)
    assert row(budgets, one)["refused"] == 4


def test_tokens_of_a_minute_are_those_that_were_really_used() -> None:
    clock = Clock()
    budgets, one = Budgets(clock, {}), entry(tokens_per_minute=600)
    first = budgets.begin(one, 500)
    second = budgets.begin(one, 500)  # something was left, and nobody knows how long an answer will be
    assert refused(budgets, one).retry_after_s == 41
    budgets.end("alice", first, Spent(20, 30))
    budgets.begin(one, 1)
    budgets.end("alice", second, Spent(2000, 4000))
    assert refused(budgets, one).retry_after_s == pytest.approx(546, abs=1)
    clock.now_s += 600
    budgets.begin(one, 1)


def test_tokens_of_the_day_are_back_at_midnight() -> None:
    clock = Clock()
    budgets, one = Budgets(clock, {}), entry(tokens_per_day=1000)
    budgets.end("alice", budgets.begin(one, 10), Spent(700, 400))
    error = refused(budgets, one)
    assert (error.code, error.retry_after_s) == ("tokens_per_day_exceeded", 23 * 3600)
    assert "used 1,100 of its 1,000 tokens" in error.message and "at 00:00 UTC, in 23 h 00 min" in error.message
    assert row(budgets, one)["tokens_left_today"] == 0
    clock.now_s += 23 * 3600
    budgets.begin(one, 10)
    assert row(budgets, one) == {**row(budgets, one), "requests": 1, "prompt_tokens": 0, "refused": 0}


def test_what_runs_is_counted_by_its_estimate() -> None:
    """Else a thousand requests would begin with the last token of the day."""
    budgets, one = Budgets(Clock(), {}), entry(tokens_per_day=1000)
    number = budgets.begin(one, 2000)
    error = refused(budgets, one)
    assert (error.code, error.retry_after_s) == ("rate_limit_exceeded", 5)
    assert "will need about 2,000" in error.message
    budgets.end("alice", number, Spent(10, 10))
    budgets.begin(one, 1)


def test_what_was_used_before_this_start_counts() -> None:
    budgets, one = Budgets(Clock(), {"alice": (3, 600, 400)}), entry(tokens_per_day=1000)
    assert refused(budgets, one).code == "tokens_per_day_exceeded"
    assert row(budgets, one)["requests"] == 3
    budgets.begin(entry(tokens_per_day=1001), 1)  # the file has changed


def test_a_request_ends_once() -> None:
    budgets, one = Budgets(Clock(), {}), entry(tokens_per_minute=100)
    number = budgets.begin(one, 50)
    for _ in range(3):
        budgets.end("alice", number, Spent(10, 20))
    assert row(budgets, one) == {**row(budgets, one), "prompt_tokens": 10, "generated_tokens": 20, "running": 0}


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 300), st.integers(0, 300)), max_size=60))
def test_no_order_of_requests_gives_more_than_the_rate(steps: list[tuple[int, int, int]]) -> None:
    """Over any time: the bucket, what flowed in, and what the requests that were let in were off by."""
    clock = Clock()
    budgets, one = Budgets(clock, {}), entry(tokens_per_minute=600, requests_per_minute=30)
    begun_s, used, num_requests, most = clock.now_s, 0, 0, 0
    for wait_s, estimate, taken in steps:
        clock.now_s += wait_s
        try:
            number = budgets.begin(one, estimate)
        except ApiError as error:
            assert error.retry_after_s is not None and error.retry_after_s >= 1
            clock.now_s += error.retry_after_s
            number = budgets.begin(one, estimate)  # as it said
        budgets.end("alice", number, Spent(taken, 0))
        used, num_requests, most = used + taken, num_requests + 1, max(most, taken)
        passed_s = clock.now_s - begun_s
        assert used - most <= 600 + 10 * passed_s + 1e-6
        assert num_requests <= 30 + passed_s / 2 + 1e-6
