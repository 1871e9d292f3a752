"""Server-sent events: cut at any byte, they are the same objects."""

from __future__ import annotations

import pytest

from qserve.client.stream import EventStream, NoEvent, data_of

_BODY = (
    ': ping\n\nevent: x\ndata: {"a": "你"}\n\ndata:{"b":\ndata: 2}\r\n\r\ndata: {"c": 3}\n\ndata: [DONE]\n\n'
).encode()
_OBJECTS = [{"a": "你"}, {"b": 2}, {"c": 3}]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 1000])
def test_pieces_of_any_size_give_the_same_objects(size: int) -> None:
    stream = EventStream()
    pieces = [_BODY[start : start + size] for start in range(0, len(_BODY), size)]
    assert [one for piece in pieces for one in stream.feed(piece)] == _OBJECTS
    assert stream.is_done and not list(stream.end())


def test_what_comes_behind_the_end_is_dropped() -> None:
    stream = EventStream()
    assert not list(stream.feed(b'data: [DONE]\n\ndata: {"a": 1}\n\n')) and stream.is_done
    assert not list(stream.feed(b"data: x\n\n"))


def test_a_last_event_without_its_blank_line_counts_and_a_missing_end_shows() -> None:
    stream = EventStream()
    assert not list(stream.feed(b'data: {"a": 1}\n'))
    assert list(stream.end()) == [{"a": 1}] and not stream.is_done


@pytest.mark.parametrize(("data", "is_json"), [(b'{"a"', False), (b"<html>", False), (b"7", True), (b"[]", True)])
def test_an_event_without_an_object_is_told(data: bytes, is_json: bool) -> None:
    with pytest.raises(NoEvent) as raised:
        list(EventStream().feed(b"data: " + data + b"\n\n"))
    assert (raised.value.data, raised.value.is_json) == (data, is_json)


def test_a_comment_has_no_data() -> None:
    assert data_of(b": ping") == b"" and data_of(b"event: x\ndata: 1\nid: 3") == b"1"
