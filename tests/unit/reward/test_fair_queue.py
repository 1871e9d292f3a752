"""Fair shares between requests, as the order in which their texts are taken; portions of a request; bounds on texts."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from qserve.reward.protocols.job import Text
from qserve.reward.scoring.fair_queue import FairQueue, Flow
from qserve.reward.serving.portions import is_large, portions
from qserve.wire.reward.fields import BULK_SLOTS, num_slots


class Job:
    def __init__(self, owner, tokens=10):
        self.owner, self.tokens = owner, tokens


def queue():
    return FairQueue(lambda job: job.tokens)


def rows(waiting, row_tokens=100):
    """Owners of the jobs of each row until nothing waits, as a scorer takes them."""
    taken = []
    while waiting:
        row, tokens = [], 0
        for job in waiting.window(8 * row_tokens):
            if row and tokens + job.tokens > row_tokens:
                break
            row.append(job)
            tokens += job.tokens
        waiting.take(row)
        taken.append([job.owner for job in row])
    return taken


def test_two_texts_do_not_wait_behind_twenty_thousand():
    waiting = queue()
    waiting.put(Flow(), [Job("flood") for _ in range(20_000)])
    first = waiting.window(100)
    waiting.take(first[:10])
    waiting.put(Flow(), [Job("honest") for _ in range(2)])
    row = [job.owner for job in waiting.window(100)][:10]
    assert row.count("honest") == 2


def test_each_of_three_requests_gets_a_third():
    waiting = queue()
    for name, count in (("a", 90), ("b", 90), ("c", 90)):
        waiting.put(Flow(), [Job(name) for _ in range(count)])
    for row in rows(waiting, row_tokens=90):
        assert sorted(row) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_shares_are_of_tokens_not_of_texts():
    waiting = queue()
    waiting.put(Flow(), [Job("long", 50) for _ in range(10)])
    waiting.put(Flow(), [Job("short", 10) for _ in range(50)])
    taken = [owner for row in rows(waiting) for owner in row]
    half = taken[:30]
    assert abs(50 * half.count("long") - 10 * half.count("short")) <= 50


def test_a_request_is_not_paid_for_the_time_before_it_came():
    waiting, old = queue(), Flow()
    waiting.put(old, [Job("old") for _ in range(1000)])
    waiting.take(waiting.window(5000))
    waiting.put(Flow(), [Job("new") for _ in range(100)])
    owners = [job.owner for job in waiting.window(400)]
    assert owners[:8].count("old") == 4


def test_a_request_of_many_portions_keeps_its_clock():
    waiting, flood = queue(), Flow()
    for _ in range(10):
        waiting.put(flood, [Job("flood") for _ in range(10)])
        waiting.take(waiting.window(90))
    waiting.put(flood, [Job("flood") for _ in range(10)])
    waiting.put(Flow(), [Job("honest")])
    assert "honest" in [job.owner for job in waiting.window(10)]


@given(st.lists(st.lists(st.integers(1, 30), max_size=30), max_size=5))
def test_every_job_is_taken_once_and_each_request_in_order(requests):
    waiting = queue()
    jobs = [[Job((owner, index), tokens) for index, tokens in enumerate(one)] for owner, one in enumerate(requests)]
    for one in jobs:
        waiting.put(Flow(), one)
    assert waiting.num_tokens == sum(sum(one) for one in requests)
    taken = [owner for row in rows(waiting, row_tokens=40) for owner in row]
    assert sorted(taken) == sorted(job.owner for one in jobs for job in one)
    for owner, _ in enumerate(requests):
        own = [index for who, index in taken if who == owner]
        assert own == sorted(own)
    assert waiting.num_tokens == 0 and not waiting


def test_what_nobody_waits_for_is_dropped():
    waiting = queue()
    waiting.put(Flow(), [Job("gone"), Job("kept"), Job("gone")])
    waiting.drop(lambda job: job.owner == "gone")
    assert [job.owner for job in waiting.window(100)] == ["kept"]
    waiting.drop(lambda job: True)
    assert not waiting


@given(st.lists(st.integers(0, 100_000), max_size=300))
def test_portions_are_the_texts_in_order_and_none_is_large(sizes):
    texts = [Text("x" * size, f"texts.{index}") for index, size in enumerate(sizes)]
    parts = list(portions(texts))
    assert [text.where for part in parts for text in part] == [text.where for text in texts]
    for part in parts:
        assert len(part) <= 64
        assert len(part) == 1 or sum(len(text.content) for text in part) <= 1 << 16
        assert is_large(part) == (len(part[0].content) > 1 << 16)


def test_places_bound_how_many_large_requests_the_worker_holds():
    assert [num_slots(count) for count in (1, 64, 65, 1024, 30_000)] == [1, 1, 2, BULK_SLOTS, BULK_SLOTS]
    assert len(list(groupby(num_slots(count) for count in range(1, 2000)))) == BULK_SLOTS


def described(**changed):
    byte_level = {"type": "ByteLevel"}
    return {"model": {"type": "BPE"}, "pre_tokenizer": byte_level, "normalizer": {"type": "NFC"}, **changed}


def bound(words=("a", "abcd"), **changed):
    import json

    from qserve.reward.scoring.size_bound import SizeBound

    backend = SimpleNamespace(to_str=lambda: json.dumps(described(**changed)))
    return SizeBound(SimpleNamespace(backend_tokenizer=backend, get_vocab=lambda: dict.fromkeys(words, 0)))


def test_a_text_of_more_bytes_than_tokens_can_hold_is_known_to_be_too_long():
    assert not bound().exceeds("x" * 40, 10)
    assert bound().exceeds("x" * 41, 10)
    assert bound().exceeds("é" * 21, 10), "bytes count, not characters"
    assert not bound().exceeds("e\u0301" * 20, 10), "what the tokenizer composes counts as composed"


def test_no_bound_where_a_tokenizer_may_drop_characters():
    strips = {"added_tokens": [{"content": "<x>", "rstrip": True}]}
    lower = {"normalizer": {"type": "Lowercase"}}
    words = {"pre_tokenizer": {"type": "WhitespaceSplit"}}
    for changed in (strips, lower, words, {"model": {"type": "Unigram"}}):
        assert not bound(**changed).exceeds("x" * 10_000, 1)
