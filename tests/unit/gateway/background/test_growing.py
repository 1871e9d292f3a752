"""A background response while it grows."""

from __future__ import annotations

import json

import msgspec
import pytest

from qserve.gateway.background.growing import GrowingResponse
from qserve.wire.dialects.responses_answer import ResponsesAnswer
from qserve.wire.errors import ApiError, Dialect

ECHO = {"model": "m", "temperature": 0.5, "tools": None, "metadata": {"a": "b"}}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DELTAS = ({"reasoning": "Well, "}, {"reasoning": "so"}, {"content": "For"}, {"content": "ty"})


def asked(**fields):
    body = {"model": "m", "input": "x", "background": True, **fields}
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()}


def answered(deltas=DELTAS, finish="stop"):
    """The events of a worker."""
    answer = ResponsesAnswer(ECHO, "of_worker", 11, 3)
    yield from answer.begin()
    for delta in deltas:
        yield from answer.push(delta)
    yield from answer.end(finish, None, USAGE)


def grown(*events, **fields):
    response = GrowingResponse("resp_1", 7, asked(**fields))
    for event in events:
        response.take(event)
    return response


def told(response):
    return json.loads(response.document())


def data_of(event):
    name, data = event.decode().removesuffix("\n\n").split("\n")
    value = json.loads(data.removeprefix("data: "))
    assert name == f"event: {value['type']}"
    return value


def test_it_is_whole_before_a_worker_has_it():
    document = told(grown(instructions="Be brief.", metadata={"a": "b"}, tools=None, temperature=0.5))
    assert document["id"] == "resp_1" and document["created_at"] == 7 and document["status"] == "queued"
    assert document["instructions"] == "Be brief." and document["metadata"] == {"a": "b"} and document["tools"] == []
    assert document["background"] is document["store"] is True and document["output"] == [] and not document["error"]


def test_events_are_numbered_anew_without_gaps_and_carry_its_id():
    response = grown(*answered())
    events = [data_of(event) for event in response.events]
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    assert [one["type"] for one in events[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert {one["response"]["id"] for one in events if "response" in one} == {"resp_1"}
    assert [one["response"]["status"] for one in events if "response" in one] == [
        "queued",
        "queued",
        "in_progress",
        "completed",
    ]
    assert "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta") == "Forty"


def test_the_object_at_the_end_is_the_workers_own():
    answer = ResponsesAnswer(ECHO, "of_worker", 11, 3)
    list(answer.begin())
    for delta in DELTAS:
        list(answer.push(delta))
    list(answer.end("stop", None, USAGE))
    own = {"id": "resp_1", "created_at": 7, "background": True, "store": True}
    assert told(grown(*answered())) == {**answer.document(), **own}


def test_the_object_tells_what_there_is_of_the_answer():
    events = list(answered())
    place = next(number for number, event in enumerate(events) if b'"For"' in event)
    output = told(grown(*events[: place + 1]))["output"]
    assert [one["type"] for one in output] == ["reasoning", "message"]
    assert output[0]["content"][0]["text"] == "Well, so" and output[0]["status"] == "completed"
    assert output[1]["content"][0]["text"] == "For" and output[1]["status"] == "in_progress"


def test_arguments_of_a_call_grow():
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    events = list(answered(({"tool_calls": [call]},)))
    place = next(number for number, event in enumerate(events) if b"arguments.delta" in event)
    assert told(grown(*events[: place + 1]))["output"][0]["arguments"] == '{"a": '


def test_an_answer_that_was_cut_is_incomplete():
    document = told(grown(*answered(finish="length")))
    assert document["status"] == "incomplete" and document["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_cancelled_one_keeps_what_there_was_and_takes_no_more():
    events = list(answered())
    response = grown(*events[:-4])
    response.cancel()
    num_events = len(response.events)
    for event in events[-4:]:
        response.take(event)
    response.cancel()
    response.fail(ApiError(502, "late", "late"))
    assert len(response.events) == num_events and told(response)["status"] == "cancelled"
    last = data_of(response.events[-1])
    assert last["type"] == "response.cancelled" and last["response"]["output"][1]["status"] == "incomplete"
    assert last["response"]["output"][1]["content"][0]["text"] == "Forty"


@pytest.mark.parametrize(
    "event",
    [
        ApiError(502, "it died", "worker_died").event(Dialect.RESPONSES),
        b'data: {"error": {"message": "it died", "code": "worker_died"}}\n\n',
    ],
)
def test_an_error_inside_the_stream_fails_it(event):
    response = grown(*list(answered())[:5], event)
    assert told(response)["error"] == {"code": "worker_died", "message": "it died"}
    assert data_of(response.events[-1])["type"] == "response.failed"
    assert response.has_ended


def test_comments_and_the_last_line_are_no_events():
    assert len(grown(b": another worker continues this answer", b"data: [DONE]").events) == 2


def test_its_bytes_are_at_least_those_of_its_events_and_never_more_than_was_said():
    response = grown()
    for event in answered():
        before, most = response.num_bytes, GrowingResponse.cost_of(event)
        response.take(event)
        assert response.num_bytes - before <= most + 600  # the object in an event is the longer one
    assert response.num_bytes >= sum(map(len, response.events)) + len(response.document())
