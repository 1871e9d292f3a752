"""Figures as vLLM 0.32 computes them (benchmarks/serve.py: calculate_metrics), by hand and against numpy."""

from __future__ import annotations

import random
import statistics

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.bench.load import Stage, arrivals
from qserve.bench.metrics import figures_of, parse_goodput, percentile
from qserve.errors import UsageError
from tests.unit.bench.builders import failed, record, run_of


def test_a_request_by_hand():
    """Sent at 0, tokens at 100, 150 and 250 ms, the last event holding two of four tokens."""
    one = record(chunk_s=(0.1, 0.15, 0.25), output_tokens=4, end_s=0.3)
    assert one.ttft_s == 0.1
    assert one.itl_s == pytest.approx([0.05, 0.1])
    assert one.e2e_s == 0.25  # the last token, not the last byte
    assert one.tpot_s == pytest.approx((0.25 - 0.1) / 3)


def test_one_token_has_no_tpot():
    assert record(chunk_s=(0.1,), output_tokens=1).tpot_s is None


def test_an_answer_in_one_piece_has_only_its_end():
    one = record(chunk_s=(), end_s=0.5, output_tokens=8)
    assert (one.ttft_s, one.tpot_s, one.itl_s, one.e2e_s) == (None, None, [], 0.5)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.sampled_from([0.5, 0.9, 0.99]))
def test_percentiles_are_numpys(values, share):
    assert percentile(sorted(values), share) == pytest.approx(float(numpy.percentile(values, 100 * share)))


def test_failed_requests_count_in_no_figure_but_their_own():
    half = failed("timed out", chunk_s=(0.1, 0.9), output_tokens=2)  # it had tokens before it failed
    seen = figures_of(run_of([record(), record(), failed("HTTP 500"), failed("timed out"), half]), {})
    assert (seen.completed, seen.failed) == (2, 3)
    assert seen.errors == {"timed out": 2, "HTTP 500": 1}
    assert seen.error_sentences["timed out"] == "timed out: a sentence"
    assert seen.total_output_tokens == 6
    assert (seen.ttft.num_values, seen.tpot.num_values, seen.itl.num_values, seen.e2el.num_values) == (2, 2, 4, 2)


def test_throughput_is_over_the_whole_stage():
    seen = figures_of(run_of([record(), record()], duration_s=4.0), {})
    assert seen.request_throughput == 0.5
    assert seen.output_throughput == 1.5
    assert seen.total_token_throughput == (20 + 6) / 4


def test_itl_is_over_all_gaps_and_tpot_over_requests():
    seen = figures_of(run_of([record(chunk_s=(0.1, 0.2)), record(chunk_s=(0.1, 0.2, 0.5, 0.9))]), {})
    assert (seen.itl.num_values, seen.tpot.num_values) == (4, 2)


def test_goodput_wants_every_limit_kept():
    fast = record(chunk_s=(0.1, 0.11), output_tokens=2)
    late = record(chunk_s=(0.3, 0.31), output_tokens=2)
    slow = record(chunk_s=(0.1, 0.2), output_tokens=2)
    short = record(chunk_s=(0.1,), output_tokens=1)  # has no TPOT, and keeps every limit of it
    run = run_of([fast, late, slow, short, failed()], duration_s=2.0)
    assert figures_of(run, {"ttft": 200, "tpot": 50}).request_goodput == 1.0
    assert figures_of(run, {"e2el": 150}).request_goodput == 1.0
    assert figures_of(run, {}).request_goodput is None


def test_goodput_is_spelled_as_vllm_spells_it():
    assert parse_goodput(["ttft:200", "tpot:50"]) == {"ttft": 200.0, "tpot": 50.0}
    assert parse_goodput(["ttft:200 e2e:3000,tpot:5.5"]) == {"ttft": 200.0, "e2el": 3000.0, "tpot": 5.5}


@pytest.mark.parametrize("word", ["ttft", "ttft:", "ttft:-1", "ttft:fast", "latency:3", "ttft:0"])
def test_other_limits_are_refused(word):
    with pytest.raises(UsageError, match=r"ttft:200, tpot:50 or e2el:3000"):
        parse_goodput([word])


def open_run(came_s, took_s, burst_size=1, **fields):
    records = [
        record(start_s=due_s, end_s=end_s, chunk_s=(0.01,), index=index)
        for index, (due_s, end_s) in enumerate(zip(came_s, took_s, strict=True))
    ]
    return run_of(records, Stage(request_rate=10.0, burst_size=burst_size), came_s[-1], **fields)


def test_a_queue_that_grows_shows_while_requests_still_come():
    """Ten arrivals a second answered five a second: the drain after the last arrival must not hide it."""
    came_s = [0.1 * number for number in range(20)]
    seen = figures_of(open_run(came_s, [0.2 + one for one in came_s]), {})
    assert seen.kept_up == pytest.approx(0.5)
    assert seen.backlog_growth == pytest.approx(1.0)
    assert figures_of(open_run(came_s, [0.2] * 20), {}).kept_up == 1.0


def test_a_burst_at_the_end_is_no_queue_that_grows():
    """Fifteen bursts of four in three seconds, each answered within the quarter second: nothing was left behind."""
    rng = random.Random(7)
    bursts_s = sorted(rng.uniform(0.0, 3.0) for _ in range(15))
    came_s = [one for one in bursts_s for _ in range(4)]
    took_s = [rng.uniform(0.08, 0.25) for _ in came_s]
    assert figures_of(open_run(came_s, took_s, burst_size=4), {}).kept_up == 1.0


@pytest.mark.parametrize("load", [0.5, 0.7, 2.0])
def test_eight_servers_in_step_are_told_from_eight_that_fall_behind(load):
    """A queue in front of eight servers, answers of varied length: a verdict may err, but not often."""
    said = [figures_of(queued(load, seed), {}).kept_up for seed in range(40)]
    num_behind = sum(one < 0.9 for one in said)
    if load < 1:
        assert num_behind <= 4
    else:
        assert num_behind >= 36
        assert statistics.median(said) == pytest.approx(1 / load, abs=0.08)


def test_bursts_are_taken_for_one_measurement_each():
    """Four that came together waited together: fifteen bursts say less than sixty arrivals."""
    said = [figures_of(queued(0.8, seed, num=60, burst_size=4, spread=0.0), {}).kept_up for seed in range(60)]
    assert sum(one < 0.9 for one in said) <= 10


def queued(load, seed, num=120, burst_size=1, spread=0.5):
    rng = random.Random(seed)
    free_s, took_s = [0.0] * 8, []
    came_s = arrivals(Stage(request_rate=10.0, num_prompts=num, burst_size=burst_size), rng)
    for due_s in came_s:
        begins_s = max(due_s, min(free_s))
        free_s[free_s.index(min(free_s))] = ends_s = begins_s + load * 0.8 * rng.uniform(1 - spread, 1 + spread)
        took_s.append(ends_s - due_s)
    return open_run(came_s, took_s, burst_size=burst_size)


def test_what_fails_is_not_kept_up_with():
    """A server that turns every other request away lets nobody wait, and still answers half of what comes."""
    stage = Stage(request_rate=10.0)
    records = [
        failed(start_s=0.1 * n, index=n) if n % 2 else record(start_s=0.1 * n, end_s=0.3, index=n) for n in range(40)
    ]
    seen = figures_of(run_of(records, stage, 4.0), {})
    assert seen.kept_up == pytest.approx(0.5)
    assert seen.backlog_growth == 0.0


def test_the_generators_own_lateness_is_kept():
    late = record(start_s=0.5, due_s=0.4)
    assert figures_of(run_of([late]), {}).lag.p50 == pytest.approx(100)
