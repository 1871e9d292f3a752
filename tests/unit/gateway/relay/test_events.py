"""Cutting a stream at the ends of its events: nothing lost, nothing cut in half, however the bytes arrive."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.engines.vllm.wire.errors import stream_error_of
from qserve.gateway.relay.events import (
    MAX_HELD_BYTES,
    EventCutter,
    count_announcements,
    count_closings,
    count_events,
    count_named,
)
from qserve.gateway.relay.stream_counts import StreamCounts
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.telemetry.record import RequestRecord
from qserve.gateway.telemetry.request_rows import row_of

_ENDS = (b"\n\n", b"\r\n\r\n")
_payloads = st.lists(st.text(max_size=20), max_size=8)


def _stream(texts, end=b"\n\n"):
    return b"".join(b"data: " + json.dumps({"content": text}).encode() + end for text in texts)


def _pieces(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


@given(texts=_payloads, end=st.sampled_from(_ENDS), cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_whole_events_come_out_whatever_the_pieces(texts, end, cuts):
    data = _stream(texts, end)
    cutter = EventCutter()
    out = [cutter.feed(piece) for piece in _pieces(data, cuts)]
    assert all(not part or part.endswith(end) for part in out)
    assert b"".join(out) == data and cutter.rest() == b""
    assert sum(count_events(part) for part in out) == len(texts)


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_no_byte_is_lost_or_moved_even_of_nonsense(data, cuts):
    cutter = EventCutter()
    out = [cutter.feed(piece) for piece in _pieces(data, cuts)]
    assert all(not part or part.endswith(_ENDS) for part in out)
    assert b"".join(out) + cutter.rest() == data


@given(texts=st.lists(st.sampled_from(["data: ", "\ndata:", "\n\ndata: x", 'data: "', "[DONE]"]), max_size=6))
def test_content_that_looks_like_an_event_is_not_counted(texts):
    assert count_events(_stream(texts)) == len(texts)


def test_comments_do_not_count():
    assert count_events(b": ping\n\ndata: 1\n\n: ping\n\ndata: 2\n\n") == 2
    assert count_events(b": ping\n\n") == 0


def test_half_an_event_is_held_back():
    cutter = EventCutter()
    assert cutter.feed(b'data: {"a": 1}\n\ndata: {"b"') == b'data: {"a": 1}\n\n'
    assert cutter.feed(b": 2}\n") == b""
    assert cutter.feed(b"\n") == b'data: {"b": 2}\n\n'


def test_an_endless_event_is_not_collected_for_ever():
    cutter = EventCutter()
    piece = b"x" * 65536
    out = 0
    for _ in range(64):
        out += len(cutter.feed(piece))
    assert 64 * len(piece) - out <= MAX_HELD_BYTES


def test_the_usual_chunk_is_passed_on_without_a_copy():
    chunk = _stream(["hello"])
    assert EventCutter().feed(chunk) is chunk


def test_usage_and_the_end_are_no_tokens():
    token = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    stop = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'  # its token ends the answer
    usage = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
    quoted = _stream(['"choices":[]', "data: [DONE]"])
    end = b"data: [DONE]\n\n"
    assert [count_closings(part) for part in (token, stop, usage, usage + end, end, quoted)] == [0, 0, 1, 2, 1, 0]


def counted(*pieces):
    """The record of a stream of these pieces."""
    record = RequestRecord("r-1", "POST", "/v1/chat/completions")
    counts = StreamCounts(GatewayMetrics(), record)
    for piece in pieces:
        counts.add(piece)
    counts.finish()
    return record


def test_events_with_tokens_are_counted_where_nobody_tells_the_tokens():
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    token = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    end = b"data: [DONE]\n\n"
    apart = counted(role, token, token, token, end)
    assert apart.num_events == 3 and apart.tpot_s is not None
    # Tokens that were sent at once say nothing of the time between them, whatever came before and after.
    for pieces in ((role, token * 3, end), (role + token * 3 + end,), (token * 3, end)):
        at_once = counted(*pieces)
        assert at_once.num_events == 3 and at_once.tpot_s is None
        row = row_of(at_once)
        assert row is not None and row.ttft_us is not None and abs(row.ttft_us - row.e2e_us) <= 1
    assert counted(role, end).num_events == 1, "0 is an answer that is no stream"


def test_a_stream_that_broke_and_goes_on_is_counted_once():
    token, metrics = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n', GatewayMetrics()
    record = RequestRecord("r-1", "POST", "/v1/chat/completions", model="m")
    counts = StreamCounts(metrics, record)
    for _ in range(2):
        counts.add(token)
        counts.add(token)
        counts.finish()
    assert record.num_events == 4
    assert 'qserve_gateway_stream_events_total{model="m"} 4.0' in metrics.exposition().decode()


def _named(name, more=""):
    return f'event: {name}\ndata: {{"type":"{name}"{more}}}\n\n'.encode()


@pytest.mark.parametrize(
    ("before", "token", "between", "after"),
    [
        (
            ("message_start", "content_block_start", "ping"),
            "content_block_delta",
            ("content_block_stop", "content_block_start", "ping"),
            ("content_block_stop", "message_delta", "message_stop"),
        ),
        (
            ("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
            "response.output_text.delta",
            ("response.reasoning_text.done", "response.output_item.done", "response.output_item.added"),
            (
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ),
        ),
    ],
    ids=["messages", "responses"],
)
def test_named_events_that_begin_and_end_an_item_hold_no_token(before, token, between, after):
    one = _named(token, ',"delta":"event: ping\\nmessage_stop"')
    apart = counted(*map(_named, before), one, *map(_named, between), one, one, *map(_named, after))
    assert apart.num_events == 3 and apart.tpot_s is not None
    first, middle, last = (b"".join(map(_named, names)) for names in (before, between, after))
    for pieces in (
        (first + one + middle + one + last,),
        (*map(_named, before), one + one, *map(_named, after)),
        (first, one + middle + one, last),
    ):
        at_once = counted(*pieces)
        assert at_once.num_events == 2 and at_once.tpot_s is None
    assert count_named(one) == count_named(_stream(["event: ping"])) == 0
    assert count_named(last.replace(b"\n", b"\r\n")) == len(after)


def test_who_speaks_is_no_token():
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    token = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"}}]}\n\n'
    quoted = _stream(['"role":"assistant","content":""'])
    assert [count_announcements(part) for part in (role, role + role + token, token, quoted)] == [1, 2, 0, 0]


def test_a_stream_that_another_engine_ended_with_an_error_has_its_code():
    dead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    end = b"data: [DONE]\n\n"
    for message, code in ((dead, "worker_died"), ("list index out of range", "worker_error")):
        event = {"error": {"message": message, "type": "InternalServerError", "code": 500}}
        assert stream_error_of(f"data: {json.dumps(event)}\n\n".encode() + end) == code
    told = {"choices": [{"delta": {"content": f'data: {{"error": "{dead}"}}\ndata: {{"error": 1}}'}}]}
    assert stream_error_of(f"data: {json.dumps(told)}\n\n".encode() + end) == ""
    assert stream_error_of(b'event: error\ndata: {"type": "error", "error": {"message": "no"}}\n\n') == "worker_error"
