"""One request and its answer on a client's connection: uvicorn's, with fewer writes.

uvicorn writes an answer's head and its body one after the other, a system call each. Here the head of an answer that
tells its length goes out with the first of its body.
"""

from __future__ import annotations

import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

__all__ = ["Answering"]

_NO_NAME = re.compile(b'[\x00-\x1f\x7f()<>@,;:\\[\\]={} \t\\\\"]')
_NO_VALUE = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY = (204, 304)


class Answering(RequestResponseCycle):
    """The names and the order of messages are ASGI's."""

    _head = b""  # that goes out with the body

    def take_body(self) -> bytes | None:
        """The whole body, of which nothing was received, where it has come; else None, and `receive` has it."""
        if self.more_body or self.disconnected or self.response_complete or self.waiting_for_100_continue:
            return None
        body, self.body = bytes(self.body), bytearray()
        if self.flow.read_paused:
            self.flow.resume_reading()
        return body

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"{message['type']} is not what an answer goes on with")
        if self.response_started:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))

    def _begin(self, status: int, headers: Any) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        parts, closes = [STATUS_LINE[status]], False
        for name, value in (*self.default_headers, *headers):
            if _NO_NAME.search(name) or _NO_VALUE.search(value):
                raise RuntimeError("a header that is none")
            if name == b"content-length":
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"connection":
                closes = b"close" in value.lower()
            parts += (name, b": ", value, b"\r\n")
        self.keep_alive = self.keep_alive and not closes
        if not self.keep_alive and not closes:
            parts.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY:
            self.chunked_encoding = True
            parts.append(b"transfer-encoding: chunked\r\n")
        parts.append(b"\r\n")
        head = b"".join(parts)
        if self.expected_content_length:
            self._head = head
        else:
            self.transport.write(head)

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body += b"0\r\n\r\n" if is_last else b""
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the answer is longer than its Content-Length")
        if data := self._head + body:
            self._head = b""
            self.transport.write(data)
        if is_last:
            self._end()

    def _end(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("the answer is shorter than its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
