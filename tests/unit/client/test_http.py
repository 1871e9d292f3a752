"""Requests that wait: answers of any status, redirects, keys, and each way to have no answer."""

from __future__ import annotations

from http.client import BadStatusLine, IncompleteRead

import pytest

from qserve.client.answer import NotJson, Refused, Unreachable, UnsendableKey
from qserve.client.http import Connection, ask, opened
from tests.unit.client.servers import answer, serving

_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def got(url: str, **options):
    return ask("GET", url, **{"timeout_s": 5, **options})


def test_a_mapping_is_sent_as_json_with_the_key() -> None:
    with serving(answer(b'{"a": [1]}', 201)) as server:
        told = ask("POST", f"{server.url}/v1/x", api_key="sk-1", body={"b": 2}, headers={"X-More": "3"}, timeout_s=5)
    assert (told.status, told.json()) == (201, {"a": [1]})
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/x HTTP/1.1\r\n") and body == b'{"b": 2}'
    lines = head.lower().split(b"\r\n")
    assert {b"authorization: bearer sk-1", b"content-type: application/json", b"x-more: 3"} <= set(lines)


def test_without_a_key_no_key_is_sent() -> None:
    with serving(answer(b"{}")) as server:
        got(server.url, api_key="")
    assert b"authorization" not in server.requests[0].lower()


@pytest.mark.parametrize("status", [400, 401, 404, 503])
def test_an_error_is_an_answer_with_its_message(status: int) -> None:
    with serving(answer(b'{"error": {"message": "no such model"}}', status)) as server:
        told = got(server.url)
    assert (told.status, told.message()) == (status, "no such model")
    with pytest.raises(Refused, match=f"status {status}: no such model"):
        told.raise_for_status()


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a": ', b"\xff", b"[" * 100_000])
def test_a_body_that_is_not_json_is_told(body: bytes) -> None:
    with serving(answer(body)) as server, pytest.raises(NotJson):
        got(server.url).json()


def test_an_address_without_a_server() -> None:
    with serving() as server:
        url = server.url
    with pytest.raises(Unreachable, match="refused") as raised:
        got(url)
    assert isinstance(raised.value.reason, ConnectionRefusedError)


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", BadStatusLine),
        (b"", ConnectionResetError),
        (answer(b"{}", length=9), IncompleteRead),
        (None, TimeoutError),
    ],
)
def test_what_is_no_answer_is_unreachable_with_its_reason(sent: bytes | None, reason: type[Exception]) -> None:
    with serving(sent) as server, pytest.raises(Unreachable) as raised:
        got(server.url, timeout_s=0.2)
    assert isinstance(raised.value.reason, reason)


@pytest.mark.parametrize("key", ["sk-\u2603", "sk\nx"])
def test_a_key_that_no_header_holds(key: str) -> None:
    with serving(answer(b"{}")) as server:
        with pytest.raises(UnsendableKey, match="the key of --api-key can't be sent") as raised:
            got(server.url, api_key=key)
        assert "sk" not in str(raised.value)
        with pytest.raises(UnsendableKey):
            Connection(server.url, key, timeout_s=5).ask("GET", "/")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/模型", "http://a..b"])
def test_an_address_that_no_request_can_hold_is_no_fault_of_the_key(url: str) -> None:
    with pytest.raises(Unreachable, match="codec"):
        got(url, api_key="sk-1", by_proxy=False)
    with pytest.raises(Unreachable):
        Connection(url, "sk-1", timeout_s=5).ask("GET", "/模型")


def test_a_body_that_breaks_off_does_not_end_quietly() -> None:
    """http.client takes the half for the whole if it is read in pieces."""
    with serving(answer(b"half", length=8)) as server, opened("GET", server.url, timeout_s=5) as reply:
        assert reply.read(64) == b"half"
        with pytest.raises(Unreachable, match="4 more expected"):
            reply.read(64)


def test_no_more_is_read_than_was_wanted() -> None:
    with serving(answer(b"0123456789")) as server:
        assert got(server.url, max_bytes=4).body == b"0123"


def test_a_redirect_of_get_is_followed_with_the_key_on_its_own_host_alone() -> None:
    with serving(answer(b"there")) as other, serving(answer(b"", 307, f"location: {other.url}/x")) as server:
        assert got(server.url, api_key="sk-1").body == b"there"
    assert b"sk-1" in server.requests[0] and b"sk-1" not in other.requests[0]
    with serving(answer(b"", 307, "location: /new"), answer(b"here")) as server:
        assert got(server.url, api_key="sk-1").body == b"here"
    assert server.requests[1].startswith(b"GET /new ") and b"sk-1" in server.requests[1]


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_of_post_is_an_answer(status: int) -> None:
    with serving(answer(b"", status, "location: /new"), answer(b"{}")) as server:
        assert ask("POST", server.url, body={}, timeout_s=5).status == status


def test_a_proxy_of_the_environment_is_asked_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(answer(b"proxy")) as proxy, serving(answer(b"server")) as server:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy.url)
        assert got(server.url).body == b"proxy"
        assert got(server.url, by_proxy=False).body == b"server"


def test_a_connection_asks_below_its_path_and_connects_again() -> None:
    with serving(answer(b"1"), answer(b"2", 404)) as server:
        connection = Connection(f"{server.url}/below/", "sk-1", timeout_s=5)
        connection.wait_for_ever()
        assert connection.ask("POST", "/v1/x", {"a": 1}).body == b"1"
        with pytest.raises(Unreachable):
            connection.ask("GET", "/v1/x")
        connection.close()
        assert connection.ask("GET", "/v1/y").status == 404
        connection.close()
    assert server.requests[0].startswith(b"POST /below/v1/x HTTP/1.1") and b"sk-1" in server.requests[0]


def test_pieces_come_before_the_end() -> None:
    whole = _CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    with serving(whole) as server, opened("GET", server.url, timeout_s=5) as reply:
        assert b"".join(reply.chunks()) == b"abcde"
    with serving(answer(b"abcde")) as server, opened("GET", server.url, timeout_s=5) as reply:
        assert b"".join(reply.chunks()) == b"abcde"


@pytest.mark.parametrize("half", [_CHUNKED + b"3\r\nabc\r\n", answer(b"abc", length=9)])
def test_pieces_that_break_off_do_not_end_quietly(half: bytes) -> None:
    with serving(half) as server, opened("GET", server.url, timeout_s=5) as reply:
        chunks = reply.chunks()
        assert next(chunks) == b"abc"
        with pytest.raises(Unreachable):
            next(chunks)
