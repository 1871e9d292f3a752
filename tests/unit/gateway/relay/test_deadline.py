"""Deadlines: what is refused at once, what while it waits, what is cancelled, and what each refusal says."""

from __future__ import annotations

import asyncio
import time

import pytest

from qserve.gateway.relay.deadline import Deadline, answered_in_time
from qserve.gateway.routing.pace import Expected
from qserve.gateway.telemetry.record import RequestRecord
from qserve.wire.errors import ApiError

NOTHING = Expected(None, None, None)


def _scope(*values):
    return {"headers": [(b"x-qserve-deadline-ms", value) for value in values], "method": "POST"}


def _deadline(ms=1000):
    return Deadline(ms, time.perf_counter() + ms / 1000)


async def _at_once():
    return "slots"


async def _never():
    await asyncio.get_running_loop().create_future()


def test_it_counts_from_the_arrival():
    record = RequestRecord.begin(_scope(b"1500"), "/v1/completions")
    assert Deadline.of(record, 3) == (1500, pytest.approx(record.started_s + 1.5), 3)
    assert Deadline.of(RequestRecord.begin(_scope(), "/v1/completions")) is None


@pytest.mark.parametrize("value", [b"", b"0", b"-5", b"1.5", b"5s", b"\xb2", b"86400001", b"9" * 5000])
def test_what_is_no_time_is_refused_by_name(value):
    with pytest.raises(ApiError, match=r"x-qserve-deadline-ms is .* whole milliseconds") as refused:
        Deadline.of(RequestRecord.begin(_scope(value), "/"))
    assert (refused.value.status, refused.value.param) == (400, "x-qserve-deadline-ms")
    assert len(refused.value.message) < 200


def test_two_values_are_refused():
    with pytest.raises(ApiError, match="'100, 200'; it takes whole milliseconds, once"):
        Deadline.of(RequestRecord.begin(_scope(b"100", b"200"), "/"))


def test_another_process_has_as_much_time_left():
    deadline = _deadline()
    assert Deadline.from_json(deadline.to_json()) == (1000, pytest.approx(deadline.until_s, abs=0.05), 1)


async def test_what_can_be_done_in_time_gets_its_slots():
    assert await _deadline().keeping(Expected(0.1, 0.3, 0.4), 10, _at_once) == "slots"
    assert await _deadline().keeping(NOTHING, None, _at_once) == "slots"


@pytest.mark.parametrize(
    ("expected", "max_tokens", "said", "retry_after_s"),
    [
        (
            Expected(0.2, 0.3, 5.0),
            500,
            r"takes about 5.5 s \(0.2 s in the queue, 0.3 s to the first token, 5 s for max_tokens of 500\), and "
            r"(1|0.99\d) s of the 1000 ms of x-qserve-deadline-ms are left; "
            r"ask for at most (49|50) tokens \(max_tokens\), or allow at least 55\d\d ms",
            1,
        ),
        (Expected(7.5, 0.3, 0.5), 50, r"7.5 s in the queue.*; send it again later, or allow at least 83\d\d ms", 8),
        (Expected(0.0, 3.0, None), None, r"takes about 3 s \(3 s to the first token\).*; shorten the prompt, or", 1),
        (Expected(900.0, None, None), None, "900 s in the queue", 60),
    ],
)
async def test_what_can_not_is_refused_with_what_it_takes_and_what_to_change(expected, max_tokens, said, retry_after_s):
    with pytest.raises(ApiError, match=said) as refused:
        await _deadline().keeping(expected, max_tokens, _never)
    error = refused.value
    assert (error.status, error.code, error.retry_after_s) == (503, "deadline_unreachable", retry_after_s)


async def test_one_that_comes_too_late_is_refused_though_nothing_is_known():
    with pytest.raises(ApiError, match=r"the request has no slot at a worker yet, and 0 s of the 1 ms .* are left"):
        await Deadline(1, time.perf_counter() - 1).keeping(NOTHING, None, _never)


async def test_who_waits_is_refused_as_soon_as_what_is_left_is_too_short():
    began_s = time.perf_counter()
    with pytest.raises(ApiError, match=r"still waits for a slot and takes about 0.6 s .*send it again later") as late:
        await _deadline().keeping(Expected(0.1, 0.2, 0.4), 10, _never)
    assert 0.35 < time.perf_counter() - began_s < 0.8
    assert late.value.status == 503


async def test_a_wait_that_someone_else_ends_is_not_taken_for_late():
    async def timed_out():
        raise TimeoutError("of something else")

    with pytest.raises(TimeoutError, match="of something else"):
        await _deadline().keeping(NOTHING, None, timed_out)
    record = RequestRecord.begin(_scope(), "/")
    with pytest.raises(TimeoutError, match="of something else"):
        await answered_in_time(_deadline(), record, lambda send: timed_out(), _never)


@pytest.mark.parametrize(("admitted_s", "status"), [(None, 503), (0.01, 504)])
async def test_what_is_not_over_in_time_is_cancelled(admitted_s, status):
    record = RequestRecord.begin(_scope(), "/")
    record.admitted_s, cancelled = admitted_s, []

    async def answer(send):
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        try:
            await _never()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def send(message):
        pass

    error = await answered_in_time(_deadline(50), record, answer, send)
    assert error is not None and error.status == status and cancelled == [True]
    assert await answered_in_time(_deadline(50), record, lambda send: _at_once(), send) is None


async def test_an_answer_that_is_out_is_not_late():
    async def answer(send):
        await send({"type": "http.response.body", "body": b"a"})
        await _never()

    async def send(message):
        pass

    assert await answered_in_time(_deadline(50), RequestRecord.begin(_scope(), "/"), answer, send) is None
