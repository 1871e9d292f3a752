"""Streams as servers write them: what is a token, when it came, and what else is told."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.bench.answer import StreamAnswer


def event(payload, compact=True):
    separators = (",", ":") if compact else None
    return b"data: " + json.dumps(payload, separators=separators).encode() + b"\n\n"


def chunk(**delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


ROLE = event(chunk(role="assistant", content=""))
USAGE = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
DONE = b"data: [DONE]\n\n"
WORDS = [event(chunk(content=f" w{index}")) for index in range(3)]


def answer(*parts, times=None):
    one = StreamAnswer()
    one.status, one.content_type = 200, "text/event-stream; charset=utf-8"
    for number, part in enumerate(parts):
        one.take(part, times[number] if times else float(number + 1))
    one.finish()
    return one


def test_each_event_with_a_token_is_timed_when_it_comes():
    seen = answer(ROLE, *WORDS, USAGE, DONE)
    assert seen.announced_s == 1.0
    assert seen.arrivals_s == [2.0, 3.0, 4.0]
    assert seen.usage == {"prompt_tokens": 7, "completion_tokens": 3}
    assert seen.is_done
    assert seen.text() == " w0 w1 w2"


@given(st.lists(st.integers(1, 400), max_size=12), st.booleans(), st.booleans())
def test_where_the_network_cuts_a_stream_changes_nothing(cuts, crlf, compact):
    words = [event(chunk(content=f" w{index}"), compact) for index in range(3)]
    data = b": ping\n\n" + b"".join([ROLE, *words, USAGE, DONE])
    if crlf:
        data = data.replace(b"\n", b"\r\n")
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    seen = answer(*(data[start:end] for start, end in itertools.pairwise(edges)))
    assert len(seen.arrivals_s) == 3
    assert seen.usage["completion_tokens"] == 3
    assert seen.arrivals_s == sorted(seen.arrivals_s)


def test_a_text_that_looks_like_a_field_is_text():
    seen = answer(WORDS[0], event({"choices": [], "note": '"choices":[{'}), DONE)
    assert len(seen.arrivals_s) == 1


def test_a_first_event_with_a_role_and_text_is_a_token():
    assert answer(event(chunk(role="assistant", content="Hi")), DONE).arrivals_s == [1.0]


@pytest.mark.parametrize("name", ["reasoning_content", "tool_calls"])
def test_thoughts_and_calls_are_tokens(name):
    assert answer(event(chunk(role="assistant", content=None, **{name: ["x"]})), DONE).arrivals_s == [1.0]


def test_completions_count_an_empty_text_as_vllm_does():
    assert answer(event({"choices": [{"text": ""}]}), event({"choices": [{"text": "a"}]})).arrivals_s == [1.0, 2.0]


def test_a_usage_beside_the_last_token_is_found():
    last = {**chunk(content="!"), "usage": {"completion_tokens": 2}}
    assert answer(WORDS[0], event(last), DONE).usage == {"completion_tokens": 2}


def test_an_event_without_its_blank_line_counts_at_the_end():
    assert answer(*WORDS, USAGE.rstrip(b"\n")).usage["prompt_tokens"] == 7


def test_an_error_event_is_kept():
    assert answer(WORDS[0], event({"error": {"message": "out of memory"}})).error == "out of memory"


def test_empty_choices_are_no_token_but_seen():
    seen = answer(event({"choices": []}), event({"choices": []}), DONE)
    assert (seen.arrivals_s, seen.num_events) == ([], 2)
