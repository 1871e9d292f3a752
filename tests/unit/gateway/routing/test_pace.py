"""What a request would take, of what was measured and planned: never longer than what is known says."""

from __future__ import annotations

import pytest

from qserve.gateway.routing.pace import Answered, Expected, Pace, Planned, planned_of

NOTHING = Planned()


def _expected(pace, prompt=1000, max_tokens=100, num_sequences=1, now_s=0.0, planned=NOTHING, num_rounds=1):
    return pace.expected(0.0, prompt, max_tokens, num_sequences, now_s, planned, num_rounds)


def _streamed(prompt=1000, answer=101, num_sequences=1, first_s=0.5, held_s=2.5):
    return Answered(prompt, answer, num_sequences, first_s, held_s)


def test_nothing_is_known_before_the_first_answer():
    found = _expected(Pace())
    assert found == Expected(0.0, None, None) and found.total_s == found.service_s == 0.0


def test_a_stream_tells_the_first_token_and_the_others():
    pace = Pace()
    pace.learn(_streamed(), 0.0)
    found = _expected(pace, max_tokens=201)
    assert found.prompt_s == pytest.approx(0.5) and found.answer_s == pytest.approx(200 * 0.02)
    assert found.service_s == pytest.approx(4.5)


def test_prompts_of_like_length_are_scaled_and_longer_ones_take_at_least_as_long():
    pace = Pace()
    pace.learn(_streamed(prompt=800), 0.0)
    assert _expected(pace, prompt=1000).prompt_s == pytest.approx(0.5 * 1000 / 800)
    assert _expected(pace, prompt=100_000).prompt_s == pytest.approx(0.5)
    assert _expected(pace, prompt=400).prompt_s is None, "a shorter one may take less"


def test_a_loaded_replica_says_nothing_of_an_idle_one():
    pace = Pace()
    pace.learn(_streamed(num_sequences=32), 0.0)
    assert _expected(pace, num_sequences=40).answer_s == pytest.approx(99 * 0.02)
    assert _expected(pace, num_sequences=200).answer_s == pytest.approx(99 * 0.02)
    assert _expected(pace, num_sequences=2).answer_s is None


def test_later_answers_move_the_mean_and_old_ones_are_forgotten():
    pace = Pace()
    pace.learn(_streamed(), 0.0)
    for second in range(1, 30):
        pace.learn(_streamed(first_s=0.1, held_s=1.1), second)
    assert _expected(pace, now_s=30.0).prompt_s == pytest.approx(0.1, rel=0.05)
    assert _expected(pace, max_tokens=101, now_s=30.0).answer_s == pytest.approx(1.0, rel=0.05)
    assert _expected(pace, now_s=100.0) == Expected(0.0, None, None)
    pace.learn(_streamed(first_s=3.0, held_s=5.0), 100.0)
    assert _expected(pace, now_s=100.0).prompt_s == pytest.approx(3.0), "nothing of before"


@pytest.mark.parametrize(
    ("prompt", "answer", "prompt_s", "each_s"), [(100, 100, None, 0.02), (3000, 100, None, None), (100, 0, 2.0, None)]
)
def test_a_whole_answer_tells_what_took_most_of_it(prompt, answer, prompt_s, each_s):
    pace = Pace()
    pace.learn(Answered(prompt, answer, 1, None, 2.0), 0.0)
    found = _expected(pace, prompt=prompt, max_tokens=51)
    assert found.prompt_s == prompt_s
    assert found.answer_s == (None if each_s is None else pytest.approx(50 * each_s))


def test_without_max_tokens_the_answer_has_no_length():
    pace = Pace()
    pace.learn(_streamed(), 0.0)
    assert _expected(pace, max_tokens=None).answer_s is None
    assert _expected(pace, max_tokens=0).answer_s == 0.0


def test_answers_that_follow_each_other_take_longer():
    pace = Pace()
    pace.learn(_streamed(), 0.0)
    assert _expected(pace, max_tokens=100, num_rounds=3).answer_s == pytest.approx(299 * 0.02)


def test_the_plan_speaks_until_something_is_measured():
    pace, planned = Pace(), Planned(0.001, 0.03)
    assert _expected(pace, planned=planned) == Expected(0.0, pytest.approx(1.0), pytest.approx(99 * 0.03))
    pace.learn(_streamed(), 0.0)
    assert _expected(pace, planned=planned) == Expected(0.0, pytest.approx(0.5), pytest.approx(99 * 0.02))


def test_what_is_planned_is_the_fast_end_of_one_stream():
    speed = {"load": {"input": 1000, "concurrency": 1}, "ttft_ms": {"low": 50.0}, "tpot_ms": {"low": 2.0}}
    assert planned_of({"speed": speed}) == Planned(pytest.approx(50e-6), pytest.approx(0.002))
    for plan in (None, {}, {"speed": {**speed, "load": {"input": 1000, "rps": 3.0}}}):
        assert planned_of(plan) == NOTHING
