"""Turns by tokens: fewest running, then fewest since both wait, and nobody waits for ever."""

from __future__ import annotations

from collections import Counter

from qserve.gateway.relay.token_shares import _MOST_TAGS, TokenShares

A, B, C = ((False, name) for name in "abc")


def _is_here(share):
    return False


def _run_one(shares, waiting, sizes):
    """The next of a worker with one slot: it begins and ends."""
    share = min(waiting, key=shares.rank)
    shares.begin(share, sizes[share])
    shares.end(share, sizes[share])
    return share


def test_of_two_that_wait_each_gets_as_many_tokens():
    shares, served = TokenShares(), Counter()
    sizes = {A: 30_000, B: 100}
    for share in sizes:
        shares.arrives(share)
    for _ in range(602):
        share = _run_one(shares, list(sizes), sizes)
        served[share] += sizes[share]
    assert served == {A: 60_000, B: 60_000}


def test_who_has_none_running_goes_before_who_has_few():
    shares = TokenShares()
    shares.arrives(A)
    shares.begin(A, 30_000)
    shares.end(A, 30_000)
    shares.arrives(B)
    shares.begin(B, 1)
    assert shares.rank(A) < shares.rank(B)


def test_nobody_waits_for_ever_behind_clients_that_come_and_go():
    shares = TokenShares()
    shares.arrives(A)
    shares.begin(A, 1000)
    shares.end(A, 1000)
    served = []
    for number in range(40):
        comes = B if number % 2 else C
        shares.arrives(comes)
        served.append(_run_one(shares, [A, comes], {A: 1000, B: 100, C: 100}))
        if served[-1] != A:
            shares.leaves(comes, _is_here)
    assert 1 <= served.count(A) <= 4


def test_nobody_saves_up_turns_by_being_away():
    shares = TokenShares()
    for share in (A, B):
        shares.arrives(share)
    shares.begin(B, 10)
    shares.end(B, 10)
    shares.leaves(B, _is_here)
    for _ in range(50):
        _run_one(shares, [A], {A: 100})
    shares.arrives(B)
    served = [_run_one(shares, [A, B], {A: 100, B: 100}) for _ in range(10)]
    assert 4 <= served.count(A) <= 6


def test_the_background_has_turns_of_its_own():
    shares, line = TokenShares(), (True, "a")
    shares.arrives(A)
    shares.begin(A, 1000)
    shares.end(A, 1000)
    shares.begin(A, 1000)
    shares.arrives(line)
    assert shares.rank(line) == (0, 0)


def test_clients_that_are_gone_are_forgotten():
    shares = TokenShares()
    shares.arrives(A)
    shares.begin(A, 5)
    for number in range(3 * _MOST_TAGS):
        share = (False, str(number))
        shares.arrives(share)
        shares.begin(share, 10)
        shares.end(share, 10)
        shares.leaves(share, lambda other: other == A)
    assert len(shares._tags) <= _MOST_TAGS + 1 and A in shares._tags
    assert set(shares._running) == {A}
