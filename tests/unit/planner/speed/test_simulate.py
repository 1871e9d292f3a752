"""The simulated scheduler, held to what can be counted by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from qserve.errors import UsageError
from qserve.planner.speed.figures import Targets, figures_of
from qserve.planner.speed.load import Arrival, Load, read_trace
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Limits
from qserve.planner.speed.terms.engine_costs import EngineCosts

COSTS = EngineCosts("test", 0, 0, 0, 0, intake_ms=0.0, intake_ms_per_1k=0.0)
LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=1000, kv_cache_tokens=100_000)


@dataclass
class FlatSteps:
    """A decode step takes 10 ms, a step with prompts 1 ms a token; what was asked is kept."""

    costs: EngineCosts = COSTS
    mixed: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)

    def decode_s(self, batch: int, context: float) -> float:
        return 0.010

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        self.mixed.append((batch, chunks))
        return 0.001 * sum(new for new, _ in chunks)


def trace(*arrivals: tuple[float, int, int]) -> Load:
    return Load(trace=tuple(Arrival(*one) for one in arrivals))


def test_one_request_takes_its_prompt_and_a_step_for_every_further_token() -> None:
    run = simulate(FlatSteps(), trace((0.0, 500, 11)), LIMITS)
    (one,) = run.finished
    assert one.ttft_s == pytest.approx(0.5)
    assert one.e2e_s == pytest.approx(0.5 + 10 * 0.010)
    assert one.tpot_s == pytest.approx(0.010)


@pytest.mark.parametrize("streams", [4, 8])
def test_an_idle_engine_that_starts_alone_has_the_others_in_its_next_step(streams: int) -> None:
    """As vLLM on a CPU was seen to: of prompts that come together one is computed first, then all the rest."""
    steps = FlatSteps(replace(COSTS, starts_alone=True))
    run = simulate(steps, Load(64, 24, concurrency=streams, num_prompts=streams, jitter=0.0), LIMITS)
    assert [(batch, len(chunks)) for batch, chunks in steps.mixed] == [(0, 1), (1, streams - 1)]
    first, last = min(one.ttft_s for one in run.finished), max(one.ttft_s for one in run.finished)
    assert (first, last) == (pytest.approx(0.064), pytest.approx(0.064 * streams))


def test_an_engine_that_waits_has_all_that_came_in_one_step() -> None:
    steps = FlatSteps()
    simulate(steps, Load(64, 24, concurrency=4, num_prompts=4, jitter=0.0), LIMITS)
    assert [len(chunks) for _, chunks in steps.mixed] == [4]


def test_requests_that_come_together_are_read_one_after_the_other() -> None:
    """A front end of one process: 20 ms each and 100 ms for 1,000 tokens; then 5 ms in which none waits for others."""
    costs = replace(COSTS, intake_ms=5.0, queued_ms=20.0, intake_ms_per_1k=100.0)
    run = simulate(FlatSteps(costs), Load(10, 1, concurrency=3, num_prompts=3, jitter=0.0), LIMITS)
    read = [0.021 * place + 0.005 for place in (1, 2, 3)]
    assert sorted(one.ttft_s for one in run.finished) == pytest.approx([at + 0.010 for at in read])
    alone = simulate(FlatSteps(costs), trace((0.0, 10, 1), (5.0, 10, 1)), LIMITS)
    assert [one.ttft_s for one in alone.finished] == pytest.approx([0.036, 0.036])


PAUSES = tuple(Arrival(0.05 * (7 * place % 10), 1, 2, place - 1 if place % 3 else None) for place in range(60))
"""Each third comes by itself, in no order; the others follow an answer after pauses of up to half a second."""


@pytest.mark.parametrize(
    "load",
    [
        Load(1, 3, users=40, think_s=1.0, num_prompts=400, jitter=0.0),
        Load(40, 2, users=7, think_s=0.2, num_prompts=70, jitter=0.9),
        Load(1, 3, concurrency=12, num_prompts=60),
        Load(1, 3, rps=40.0, num_prompts=100),
        Load(trace=PAUSES),
    ],
    ids=["users", "few users", "streams", "rate", "trace"],
)
def test_a_front_end_reads_in_the_order_of_arrival_whenever_a_request_was_issued(load: Load) -> None:
    costs = replace(COSTS, intake_ms=5.0, queued_ms=20.0, intake_ms_per_1k=100.0)
    free_s = waited_s = 0.0
    answered = sorted(simulate(FlatSteps(costs), load, replace(LIMITS, max_num_seqs=64)).finished)
    assert len(answered) == load.total_prompts
    for one in answered:
        waited_s += max(0.0, free_s - one.arrival_s)
        free_s = max(one.arrival_s, free_s) + 0.020 + 0.0001 * one.input_tokens
        assert one.ttft_s >= free_s + 0.005 - one.arrival_s - 1e-9
        assert one.ttft_s < free_s + 0.005 - one.arrival_s + 0.5, "and a few steps later it is answered"
    assert waited_s > 0


def test_what_caches_answer_of_a_prompt_is_tokenized_too() -> None:
    costs = replace(COSTS, queued_ms=1.0, intake_ms_per_1k=100.0)
    (one,) = simulate(FlatSteps(costs), Load(1000, 1, num_prompts=1, prefix_share=0.9, jitter=0.0), LIMITS).finished
    assert one.ttft_s == pytest.approx(0.001 + 0.100 + 0.100), "one millisecond, 1,000 tokens read, 100 computed"


@pytest.mark.parametrize("tokens", [1, 30, 1000])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99, 0.9999, 1 - 1e-9])
def test_a_prompt_is_read_in_the_time_of_its_tokens_however_much_of_it_is_cached(tokens: int, share: float) -> None:
    """At least one token is computed."""
    costs = replace(COSTS, queued_ms=1.0, intake_ms_per_1k=100.0)
    (one,) = simulate(FlatSteps(costs), Load(tokens, 1, num_prompts=1, prefix_share=share, jitter=0.0), LIMITS).finished
    computed = max(1, round(tokens * (1 - share)))
    assert one.ttft_s == pytest.approx(0.001 + 0.0001 * tokens + 0.001 * computed, abs=0.0002)


def test_lengths_that_are_named_are_of_what_is_computed() -> None:
    costs = replace(COSTS, intake_ms_per_1k=100.0)
    named = Load(1000, 1, num_prompts=1, prefix_share=0.9, lengths=((100, 1),))
    (one,) = simulate(FlatSteps(costs), named, LIMITS).finished
    assert one.ttft_s == pytest.approx(0.010 + 0.100)


def test_a_share_of_a_trace_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--prefix-share 0\.5: --trace names .* leave --prefix-share out"):
        replace(trace((0.0, 100, 5)), prefix_share=0.5)


def test_a_prompt_larger_than_a_step_is_prefilled_in_chunks() -> None:
    steps = FlatSteps()
    simulate(steps, trace((0.0, 2500, 2)), LIMITS)
    assert [chunks for _, chunks in steps.mixed] == [[(1000, 0)], [(1000, 1000)], [(500, 2000)]]


def test_a_prompt_that_arrives_makes_running_answers_wait() -> None:
    alone = simulate(FlatSteps(), trace((0.0, 100, 101)), LIMITS).finished[0]
    run = simulate(FlatSteps(), trace((0.0, 100, 101), (0.3, 900, 2)), LIMITS)
    held_up = max(run.finished, key=lambda one: one.output_tokens)
    assert held_up.tpot_s > alone.tpot_s


def test_no_more_sequences_run_than_are_allowed() -> None:
    run = simulate(FlatSteps(), Load(10, 50, burst=30), LIMITS)
    assert run.peak_running == 8
    assert len(run.finished) == 30


def test_want_of_cache_preempts_and_every_request_still_ends() -> None:
    small = Limits(8, 1000, 900)
    run = simulate(FlatSteps(), Load(100, 300, burst=8), small)
    assert run.preemptions > 0
    assert len(run.finished) == 8
    assert run.duration_s > simulate(FlatSteps(), Load(100, 300, burst=8), LIMITS).duration_s


def test_a_request_that_never_fits_is_refused_not_waited_for() -> None:
    run = simulate(FlatSteps(), Load(1000, 300, concurrency=2), Limits(8, 1000, 900))
    assert not run.finished
    assert run.rejected > 0


def test_a_closed_loop_keeps_its_streams_and_sends_all_prompts() -> None:
    load = Load(50, 20, concurrency=4, num_prompts=40)
    run = simulate(FlatSteps(), load, LIMITS)
    assert len(run.finished) == 40
    assert run.peak_running <= 4


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_known_lengths_are_asked_in_turn(streams: int) -> None:
    lengths = ((10, 3), (20, 9), (30, 2), (40, 5), (50, 7))
    run = simulate(FlatSteps(), Load(30, 5, concurrency=streams, num_prompts=5, lengths=lengths), LIMITS)
    asked = sorted(run.finished, key=lambda one: one.place)
    assert [(one.input_tokens, one.output_tokens) for one in asked] == list(lengths)


def test_the_same_seed_gives_the_same_run() -> None:
    load = Load(200, 50, rps=2.0, num_prompts=50)
    assert simulate(FlatSteps(), load, LIMITS) == simulate(FlatSteps(), load, LIMITS)


def test_a_rate_above_what_is_served_makes_the_queue_grow() -> None:
    slow, fast = (simulate(FlatSteps(), Load(400, 20, rps=rate, num_prompts=60), LIMITS) for rate in (0.5, 20.0))
    assert figures_of(fast, Load()).ttft_ms.mean > 5 * figures_of(slow, Load()).ttft_ms.mean


def test_a_server_that_looks_for_arrivals_every_ten_steps_lets_them_wait_for_the_tenth() -> None:
    """One runs since 0.1 s; another comes in its third step and is seen after the tenth."""
    load = trace((0.0, 100, 101), (0.125, 50, 2))
    at_once, seldom = (simulate(FlatSteps(), load, replace(LIMITS, recv_interval=every)) for every in (1, 10))
    first, second = (min(run.finished, key=lambda one: one.output_tokens).ttft_s for run in (at_once, seldom))
    assert first == pytest.approx(0.13 - 0.125 + 0.05)
    assert second == pytest.approx(0.20 - 0.125 + 0.05)
    assert simulate(FlatSteps(), trace((0.0, 100, 5)), replace(LIMITS, recv_interval=10)).finished[0].ttft_s < 0.11


def test_looking_seldom_loses_no_request() -> None:
    rare = replace(LIMITS, recv_interval=30)
    assert len(simulate(FlatSteps(), Load(50, 7, rps=9.0, num_prompts=80), rare).finished) == 80
    assert len(simulate(FlatSteps(), Load(50, 40, concurrency=12, num_prompts=90), rare).finished) == 90


def test_cached_prefixes_shorten_the_first_token() -> None:
    cold, warm = (simulate(FlatSteps(), Load(800, 5, prefix_share=share), LIMITS) for share in (0.0, 0.5))
    assert figures_of(warm, Load()).ttft_ms.mean == pytest.approx(figures_of(cold, Load()).ttft_ms.mean / 2, rel=0.05)


@pytest.mark.parametrize("users", [2, 5, 60, 300])
@pytest.mark.parametrize("think_s", [0.5, 30.0])
@pytest.mark.parametrize("lengths", [(1, 1), (100, 100), (500, 300)])
@pytest.mark.parametrize("num_prompts", [None, 500])
def test_users_ask_at_the_rate_of_their_pauses_or_at_what_a_full_server_answers(
    users: int, think_s: float, lengths: tuple[int, int], num_prompts: int | None
) -> None:
    """Neither the first ones that come nor the last pauses of a run are part of the rate."""
    load = Load(*lengths, users=users, think_s=think_s, num_prompts=num_prompts)
    figures = figures_of(simulate(FlatSteps(), load, LIMITS), load)
    full = Load(*lengths, concurrency=8, num_prompts=400)
    most = figures_of(simulate(FlatSteps(), full, LIMITS), full).requests_per_s
    alone_s = 0.001 * lengths[0] + 0.010 * (lengths[1] - 1)
    by_pauses = users / (think_s + alone_s)
    assert figures.requests_per_s <= 1.06 * min(by_pauses, most)
    if by_pauses < 0.1 * most:
        assert figures.requests_per_s > 0.93 * by_pauses
    elif by_pauses > 3 * most:
        assert figures.requests_per_s > 0.94 * most
    mean_tokens = figures.output_tokens_per_s / figures.requests_per_s
    assert mean_tokens == pytest.approx(lengths[1], rel=0.02)


def test_replicas_share_users_without_adding_any() -> None:
    load = Load(1, 1, users=5, think_s=10.0)
    figures = figures_of(simulate(FlatSteps(), load.shared_by(4), LIMITS), load, 4)
    assert figures.requests_per_s == pytest.approx(0.5, rel=0.01)


def test_targets_count_requests() -> None:
    figures = figures_of(simulate(FlatSteps(), trace((0.0, 100, 5), (5.0, 900, 5)), LIMITS), Load())
    assert figures.kept_share(Targets(ttft_ms=500)) == 0.5
    assert figures.kept_share(Targets(ttft_ms=500, tpot_ms=1)) == 0.0
    assert figures.kept_share(Targets(ttft_ms=500), ttft_factor=6) == 0.0


@pytest.mark.parametrize(
    "arguments", [{"rps": 1.0, "users": 3}, {"concurrency": 2, "burst": 2}, {"input_tokens": 0}, {"prefix_share": 1.0}]
)
def test_loads_that_contradict_themselves_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Load(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1, 2]",
        '{"arrival": 1e400, "input": 1, "output": 1}',
        '{"arrival": NaN, "input": 1, "output": 1}',
        '{"arrival": 0, "input": 1e999, "output": 1}',
        '{"arrival": 0, "input": 1, "output": 0}',
    ],
)
def test_a_line_that_is_no_request_is_named(line: str) -> None:
    with pytest.raises(UsageError, match=r"t\.jsonl, line 2: "):
        read_trace('{"arrival": 0, "input": 10, "output": 5}\n' + line, "t.jsonl")


def test_a_trace_is_read_in_order_of_time_and_names_its_broken_line() -> None:
    text = '{"arrival": 2, "input": 10, "output": 5}\n\n{"arrival": 1, "input": 20, "output": 5}\n'
    assert [one.input_tokens for one in read_trace(text)] == [20, 10]
    line = '{"arrival": 1, "input": 20, "output": 5, "prompt": "a\u2028b\x85c"}'
    assert [one.input_tokens for one in read_trace(line)] == [20]
    with pytest.raises(UsageError, match="line 2"):
        read_trace('{"arrival": 2, "input": 10, "output": 5}\n{"arrival": 1}')
