"""Requests that wait for their answer, with the standard library alone: `ask`, `opened`, and a kept `Connection`."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any, TypeVar
from urllib.parse import urlsplit

from qserve.client.answer import Answer, Unreachable, UnsendableKey, key_header

__all__ = ["Body", "Connection", "Reply", "ask", "opened"]

Body = Mapping[str, Any] | bytes | Iterator[bytes] | None
"""Of a request: a mapping is sent as JSON, the others as they are."""

Result = TypeVar("Result")
_CHUNK_BYTES = 1 << 16
_LATIN_1 = 255  # its last character: headers hold no other
_REDIRECTED_METHODS = ("GET", "HEAD")


class Reply:
    """An answer whose body is read in pieces. Reading raises Unreachable where the connection breaks."""

    def __init__(self, response: Any, redirects: tuple[Mapping[str, str], ...] = ()) -> None:
        """`redirects`: the headers of each redirect that led to it, the first one first."""
        self.status, self.headers, self.redirects = response.status, response.headers, redirects
        self._response = response

    def read(self, num_bytes: int | None = None) -> bytes:
        """At most so many bytes, or all; b"" at the end."""
        data: bytes = _translated(lambda: self._response.read(num_bytes))
        if num_bytes and not data:
            self._check_whole()
        return data

    def chunks(self) -> Iterator[bytes]:
        """The rest of the body, each piece as soon as it is there."""
        while chunk := _translated(lambda: self._response.read1(_CHUNK_BYTES)):
            yield chunk
        self._check_whole()

    def close(self) -> None:
        self._response.close()

    def _check_whole(self) -> None:
        if self._response.length:  # http.client takes a body that is cut off for a whole one
            raise Unreachable(IncompleteRead(b"", self._response.length))


def ask(
    method: str,
    url: str,
    *,
    timeout_s: float,
    api_key: str | None = None,
    body: Body = None,
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    by_proxy: bool = True,
) -> Answer:
    """The answer of any status, its body cut to `max_bytes`. Raises as `opened`."""
    with opened(
        method, url, timeout_s=timeout_s, api_key=api_key, body=body, headers=headers, by_proxy=by_proxy
    ) as reply:
        return Answer(reply.status, reply.headers, reply.read(max_bytes), reply.redirects)


@contextlib.contextmanager
def opened(
    method: str,
    url: str,
    *,
    timeout_s: float,
    api_key: str | None = None,
    body: Body = None,
    headers: Mapping[str, str] | None = None,
    by_proxy: bool = True,
) -> Iterator[Reply]:
    """The answer of any status from its headers on.

    Redirects of GET are followed; the key is sent to no other host.

    Args:
        url: of http or https, which the caller checks.
        timeout_s: for the connection, and for each wait for bytes.
        by_proxy: through the proxy that the environment names, if it names one.

    Raises Unreachable where no server answers, or `url` is no address, UnsendableKey for a key that no header may hold.
    """
    sent, data = _encoded(body)
    request = urllib.request.Request(  # noqa: S310 - the caller checks the scheme
        url, data, {**sent, **(headers or {}), **_sendable(api_key)}, method=method
    )
    proxies = [] if by_proxy else [urllib.request.ProxyHandler({})]
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects, *proxies)
    response = _translated(lambda: _response(opener, request, timeout_s))
    with contextlib.closing(Reply(response, tuple(redirects.headers))) as reply:
        yield reply


class Connection:
    """One connection to a server, kept for further requests: without proxy and redirects."""

    def __init__(self, url: str, api_key: str | None = None, *, timeout_s: float) -> None:
        """`url` is of http or https, which the caller checks; its path stands before that of each request."""
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        self._prefix, self._api_key = parts.path.rstrip("/"), api_key

    def wait_for_ever(self) -> None:
        """Connects within the timeout, which ends there: answers may take their time. Raises Unreachable."""
        _translated(self._connection.connect)
        self._connection.sock.settimeout(None)

    def open(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        """The answer from its headers on; it is to be read before the next request. Raises as `opened`."""
        sent, data = _encoded(body)
        headers = {**sent, **_sendable(self._api_key)}

        def answered() -> HTTPResponse:
            self._connection.request(method, self._prefix + path, data, headers)
            return self._connection.getresponse()

        return Reply(_translated(answered))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """The answer of any status. Raises as `opened`."""
        reply = self.open(method, path, body)
        return Answer(reply.status, reply.headers, reply.read())

    def close(self) -> None:
        """The next request connects again."""
        self._connection.close()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows GET alone: urllib would make a GET of a POST. Drops the key on the way to another host. Keeps the headers
    of each redirect.
    """

    def __init__(self) -> None:
        self.headers: list[Mapping[str, str]] = []

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.get_method() not in _REDIRECTED_METHODS:
            return None
        self.headers.append(headers)
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and not _keeps_key(req.full_url, redirected.full_url):
            redirected.remove_header("Authorization")
        return redirected


def _keeps_key(url: str, target: str) -> bool:
    """Whether `target` is on the server of `url`, or on the same host by https in place of http."""
    one, other = urlsplit(url), urlsplit(target)
    if (one.scheme, one.netloc) == (other.scheme, other.netloc):
        return True
    return one.hostname == other.hostname and (one.scheme, other.scheme) == ("http", "https")


def _response(opener: urllib.request.OpenerDirector, request: urllib.request.Request, timeout_s: float) -> Any:
    try:
        return opener.open(request, timeout=timeout_s)
    except urllib.error.HTTPError as error:
        return error  # it is the response as well, and closes it when it is dropped


def _encoded(body: Body) -> tuple[dict[str, str], Any]:
    """The header that says what a body is, and the body as it is sent."""
    if isinstance(body, Mapping):
        return {"Content-Type": "application/json"}, json.dumps(body).encode()
    return {}, body


def _sendable(api_key: str | None) -> dict[str, str]:
    """As `key_header`. Raises UnsendableKey, which does not quote the key as http.client would."""
    if any(char in "\r\n" or ord(char) > _LATIN_1 for char in api_key or ""):
        raise UnsendableKey("the key of --api-key can't be sent: it has characters that are not allowed in a key")
    return key_header(api_key)


def _translated(call: Callable[[], Result]) -> Result:
    """What `call` returns, the exceptions of urllib and http.client as our own."""
    try:
        return call()
    except (OSError, HTTPException, ValueError) as error:  # ValueError: of an address that no request can hold
        reason = getattr(error, "reason", error)
        raise Unreachable(reason if isinstance(reason, Exception) else error) from None
