"""The reward worker's report: percentiles by length, and rates over the time that it was busy."""

from __future__ import annotations

from dataclasses import dataclass, field

from qserve.reward.items import Score
from qserve.reward.serving.report import RecentRequests, report_of


@dataclass
class Stats:
    """As the scorer keeps them."""

    num_items: int = 8
    num_tokens: int = 1000
    num_computed_tokens: int = 660
    num_padding_tokens: int = 60
    num_rows: int = 2
    num_truncated: int = 1
    num_out_of_memory: int = 0
    busy_s: float = 2.0
    rows_of_items: dict[int, int] = field(default_factory=lambda: {4: 2})


def score(num_tokens: int) -> Score:
    return Score(reward=0.0, steps=None, num_tokens=num_tokens, truncated=False, position=num_tokens - 1)


def test_latencies_are_told_by_the_longest_text() -> None:
    recent = RecentRequests()
    for index in range(100):
        recent.observe([score(10), score(64)], (index + 1) / 1000)
    recent.observe([score(65)], 1.0)
    recent.observe([score(40_000)], 2.0)
    short, next_one, longest, every = recent.by_length()
    assert (short["max_tokens"], short["requests"]) == (64, 100)
    assert (short["p50"], short["p90"], short["p99"]) == (51.0, 91.0, 100.0)
    assert (next_one["max_tokens"], next_one["p50"]) == (128, 1000.0)
    assert longest["max_tokens"] is None
    assert (every["max_tokens"], every["requests"]) == ("all", 102)


def test_nothing_scored_yet_is_no_error() -> None:
    empty = Stats(num_items=0, num_tokens=0, num_computed_tokens=0, num_padding_tokens=0, busy_s=0.0, rows_of_items={})
    told = report_of(empty, RecentRequests())
    assert told["latency_ms"] == []
    assert told["tokens_per_s"] == 0
    assert told["padding_share"] == 0


def test_rates_padding_and_shared_beginnings() -> None:
    told = report_of(Stats(), RecentRequests())
    assert (told["tokens_per_s"], told["texts_per_s"], told["pairs_per_s"]) == (500.0, 4.0, 2.0)
    assert told["padding_share"] == round(60 / 660, 4)
    assert told["shared_share"] == 0.4
    assert told["texts_a_row"] == {"4": 2}
