"""uvicorn's HTTP/1.1 with a bound on what it keeps of a request before the app sees it, and errors in the API's shape.

uvicorn bounds neither the number of headers nor their length: a client without a key could fill the memory with them.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from qserve.wire.errors import ApiError

__all__ = ["MAX_HEAD_BYTES", "BoundedHttp"]

# Request line and headers. Browsers and proxies send a few kB; nginx allows 32 kB, uvicorn's other parser 64 kB.
MAX_HEAD_BYTES = 64 * 1024
_LINGER_S = 2.0
_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class _HeadTooLong(Exception):
    """Ends the parsing; the parser turns it into an error of its own."""


class BoundedHttp(HttpToolsProtocol):
    """One connection. Beyond the bound it answers 431 and closes."""

    _num_head_bytes = 0  # of this request, as the parser has handed them out
    _num_unparsed_bytes = 0  # that came after the piece in which it began, while its head is not complete
    _is_in_head = False
    _is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        if self._is_refused or self.transport.is_closing():
            return  # by the parser, in this very piece
        if not (was_in_head and self._is_in_head):
            return
        self._num_unparsed_bytes += len(data)  # one endless header is handed out when it ends, if ever
        if self._num_unparsed_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_long())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = self._num_unparsed_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for whatever the parser refuses."""
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse(_too_long())
        else:
            self._refuse(ApiError(400, "the request is no HTTP", "invalid_http"))

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            raise _HeadTooLong

    def _refuse(self, error: ApiError) -> None:
        body = error.body()
        self._is_refused = True
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (error.status, _REASONS[error.status], len(body)) + body)
        # Closed at once, what the client still sends would reset the connection, and its answer would be lost.
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _too_long() -> ApiError:
    return ApiError(431, f"request line and headers are longer than {MAX_HEAD_BYTES // 1024} KiB", "headers_too_large")
