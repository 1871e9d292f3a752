"""Which replica is asked: prefixes, loads, and what is known of requests that end workers. No HTTP."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.gateway.routing.choice import Candidate, choose, slack_tokens
from qserve.gateway.routing.poison import PoisonRequests
from qserve.gateway.routing.prefix import BLOCK_BYTES, PrefixTable, prefix_blocks
from qserve.gateway.routing.router import RequestTokens, Router, TokenEstimates
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerLoad

TOKENS = RequestTokens(100, 100)


def body(*turns: str, **fields: object) -> bytes:
    messages = [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(turns)]
    return json.dumps({**fields, "messages": messages, "max_tokens": 16}).encode()


def test_a_longer_conversation_begins_with_the_blocks_of_the_shorter_one() -> None:
    first, longer = prefix_blocks(body("a" * 900), "m"), prefix_blocks(body("a" * 900, "b" * 500, "c" * 300), "m")
    shared = sum(one == other for one, other in zip(first, longer, strict=False))
    assert len(first) - 1 <= shared < len(longer), "all but the last block, in which the list was closed"


def test_what_stands_before_the_messages_hides_nothing_and_the_model_does() -> None:
    plain = prefix_blocks(body("a" * 900), "m")
    assert prefix_blocks(body("a" * 900, user="x", seed=7), "m")[:6] == plain[:6]
    assert not set(prefix_blocks(body("a" * 900), "adapter")) & set(plain)


def test_a_prompt_is_looked_at_up_to_a_bound() -> None:
    assert len(prefix_blocks(body("a" * 10_000_000), "m")) == 256


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=60), st.integers(1, 20))
def test_the_table_is_bounded_and_holds_no_block_without_those_before_it(chains: list[list[int]], most: int) -> None:
    table, known = PrefixTable(most), {}
    for chain in chains:
        blocks = [hash(tuple(chain[: end + 1])) for end in range(len(chain))]
        known[tuple(chain)] = blocks
        table.add(blocks)
        assert table.num_matched(blocks) == min(len(blocks), most)
        assert len(table) <= most
        for each in known.values():
            held = [table.num_matched(each[: end + 1]) == end + 1 for end in range(len(each))]
            assert held == sorted(held, reverse=True), "a block is held and one before it is not"


def test_a_restarted_replica_is_known_for_nothing() -> None:
    router = Router()
    loads = {"a": WorkerLoad(), "b": WorkerLoad()}
    for name in loads:
        router.add(name, 16, loads[name])
    blocks = prefix_blocks(body("x" * 2000), "m")
    first = router.choose(blocks, ("a", "b")).name
    router.begin(first, blocks, TOKENS)
    assert loads[first].num_prefix_blocks == len(blocks)
    router.forget(first)
    assert loads[first].num_prefix_blocks == 0
    assert {router.choose(blocks, ("a", "b")).name for _ in range(4)} == {"b" if first == "a" else "a"}, "the idle one"


@pytest.mark.parametrize(
    ("loads", "matched", "chosen"),
    [
        ((0, 0, 0), (0, 4096, 0), "1"),
        ((500, 400, 0), (0, 4096, 0), "1"),  # within the slack of 500
        ((500, 501, 0), (0, 4096, 0), "2"),  # beyond it
        ((300, 200, 400), (2048, 2048, 0), "1"),  # both have it: the less loaded
        ((0, 10, 20), (0, 128, 128), "0"),  # one block is worth no detour
        ((30, 20, 10), (0, 0, 0), "2"),
    ],
)
def test_the_longest_match_wins_within_a_bound_on_the_load(
    loads: tuple[int, ...], matched: tuple[int, ...], chosen: str
) -> None:
    candidates = [Candidate(str(at), *both) for at, both in enumerate(zip(loads, matched, strict=True))]
    assert choose(candidates, slack=500).name == chosen


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 2**15)), min_size=1, max_size=9), st.integers(0, 10**5))
def test_nobody_is_asked_who_is_loaded_more_than_the_slack_above_the_least(
    replicas: list[tuple[int, int]], slack: int
) -> None:
    candidates = [Candidate(str(at), *both) for at, both in enumerate(replicas)]
    chosen = choose(candidates, slack)
    assert chosen.num_tokens <= min(one.num_tokens for one in candidates) + slack
    assert chosen.num_matched_bytes >= 256 or all(one.num_tokens >= chosen.num_tokens for one in candidates)


def test_equal_replicas_are_asked_in_turn() -> None:
    router = Router()
    for name in "abc":
        router.add(name, 16, WorkerLoad())
    assert Counter(router.choose((), "abc").name for _ in range(30)) == {"a": 10, "b": 10, "c": 10}


def test_outstanding_tokens_come_back_to_nothing_whatever_was_estimated() -> None:
    router, load = Router(), WorkerLoad()
    router.add("a", 16, load)
    blocks = prefix_blocks(body("x" * 2000), "m")
    for _ in range(3):
        counted = router.begin("a", blocks, TOKENS)
        router.has_done("a", counted.prompt)
        router.end("a", counted.answer)
    assert load.num_outstanding_tokens == load.num_outstanding_requests == 0
    assert counted.prompt == 1, "what it has seen it need not read again"


def test_estimates_follow_what_workers_report() -> None:
    estimates = TokenEstimates()
    assert estimates.of(4000, 2, 50) == RequestTokens(1000, 100)
    assert estimates.of(4000, 1, None) == RequestTokens(1000, 256)
    for _ in range(60):
        estimates.learn(3000, 1, 4096, RequestTokens(1000, 120))
    assert estimates.of(3000, 1, 4096).prompt == pytest.approx(1000, rel=0.01)
    assert estimates.of(3000, 1, 4096).answer == 120, "not the 4,096 that were asked for"
    assert estimates.of(3000, 1, 20).answer == 20


def test_the_slack_is_in_requests_of_the_usual_size() -> None:
    assert slack_tokens(8, 100.0) == 400
    assert slack_tokens(256, 100.0) == 6400


def test_a_request_that_was_in_flight_in_two_deaths_is_refused_for_a_while() -> None:
    now = [0.0]
    poison = PoisonRequests(lambda: now[0])
    assert not poison.died(7, "chat-0")
    assert not poison.died(7, "chat-0"), "many were in flight in one death"
    poison.check(7)
    assert poison.died(7, "chat-1")
    with pytest.raises(ApiError, match="died 2 times") as refused:
        poison.check(7)
    assert refused.value.status == 422
    poison.check(8)
    now[0] = 601.0
    poison.check(7)


def test_what_was_answered_between_two_deaths_is_innocent() -> None:
    poison = PoisonRequests()
    assert not poison.died(7, ("chat", 0))
    poison.answered(7)
    assert not poison.died(7, ("chat", 1))
    poison.check(7)


def test_deaths_from_outside_are_no_requests_fault() -> None:
    outside = {("chat", life) for life in range(18)}
    poison = PoisonRequests(is_outside=outside.__contains__)
    for life in range(18):
        assert not poison.died(7, ("chat", life)) and not poison.must_run_alone(7)
    poison.check(7)
    assert not poison.died(7, ("chat", 18)), "the first that may be its own"
    outside.add(("chat", 18))  # which is known a moment later
    poison.check(7)
    assert poison.died(7, ("chat", 19)), "whatever kills it, it has had enough workers"


def test_who_was_not_the_only_suspect_in_the_second_death_is_asked_once_more_alone() -> None:
    poison = PoisonRequests()
    for digest in (7, 8, 9):
        assert not poison.died(digest, "chat-0")
    for digest in (7, 8):
        poison.begins(digest, "chat-1")
    poison.begins(9, "chat-2")
    poison.begins(10, "chat-1")  # new, and so no suspect
    assert not poison.died(7, "chat-1")
    assert not poison.died(8, "chat-1"), "it may have been the other one"
    assert poison.died(9, "chat-2"), "it was the only one that had seen a death"
    assert poison.must_run_alone(7) and poison.must_run_alone(8)
    assert not poison.died(10, "chat-1") and not poison.must_run_alone(10)
    poison.check(7)
    assert poison.died(7, "chat-0 again")
    with pytest.raises(ApiError, match="died 3 times"):
        poison.check(7)
    poison.answered(8)
    assert not poison.must_run_alone(8)


def test_who_was_answered_is_no_suspect_in_the_next_death() -> None:
    poison = PoisonRequests()
    for digest in (7, 8):
        poison.died(digest, "chat-0")
        poison.begins(digest, "chat-1")
    poison.answered(8)
    assert poison.died(7, "chat-1")


def test_the_memory_of_deaths_is_bounded() -> None:
    poison = PoisonRequests()
    for digest in range(10_000):
        poison.died(digest, "chat")
        poison.begins(digest, f"chat-{digest}")
    assert len(poison.cases) == 4096
    assert len(poison._suspects_of) == 256
    assert BLOCK_BYTES == 128
