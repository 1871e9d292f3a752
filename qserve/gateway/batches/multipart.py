"""A multipart upload: its fields, and a file that is streamed to disk, so that its size takes no memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.types import Receive, Scope

from qserve.gateway.auth import header
from qserve.gateway.limits import BodyHead, ClientGone, arrival_deadline_s, stopped_arriving
from qserve.units import format_bytes
from qserve.wire.errors import ApiError

__all__ = ["MAX_FORM_BYTES", "Upload", "boundary_of", "read_upload"]

MAX_FORM_BYTES = 64 * 1024
"""Beside the file: fields, their headers and the borders between them."""
_MAX_PARTS = 16
# It logs a warning for every malformed upload; the client gets an error instead.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
_FILE = "file"


@dataclass
class Upload:
    """An upload: `fields` by name, and name and size of the file, whose bytes went into a sink."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    num_bytes: int = 0


def boundary_of(scope: Scope) -> bytes:
    """The multipart boundary. Raises ApiError 415 if the content type has none."""
    kind, options = parse_options_header(header(scope, b"content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 256:
        raise ApiError(
            415,
            "a file is uploaded as multipart/form-data with a boundary; `curl -F file=@FILE` does it",
            "not_multipart",
        )
    return boundary


async def read_upload(
    scope: Scope,
    receive: Receive,
    sink: BinaryIO,
    max_file_bytes: int,
    idle_timeout_s: float,
    reserve: Callable[[int], Awaitable[None]] | None = None,
) -> Upload:
    """Reads the body to its end, the part `file` into `sink`; `reserve` hears how many bytes may be written by now.

    Raises ApiError: 400 for what is not a form, 413 for a file that is too long, 408 for one that stops arriving, or
    comes so slowly that it would never end.
    """
    check_length(scope, max_file_bytes)
    parts = _Parts(boundary_of(scope), sink, max_file_bytes)
    first_deadline_s = deadline_s = asyncio.get_running_loop().time() + idle_timeout_s
    num_bytes, is_more = 0, True
    while is_more:
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            raise stopped_arriving(idle_timeout_s) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        num_bytes += len(message.get("body", b""))
        if reserve is not None:
            await reserve(num_bytes)
        parts.feed(message.get("body", b""))
        deadline_s = arrival_deadline_s(first_deadline_s, num_bytes, idle_timeout_s)
        is_more = message.get("more_body", False)
    return parts.finish()


def check_length(scope: Scope, max_file_bytes: int) -> None:
    """413 if the declared length is too long."""
    if BodyHead.of(scope).num_bytes > max_file_bytes + MAX_FORM_BYTES:
        raise _too_large(max_file_bytes)


class _Parts:
    """Callbacks of the multipart parser."""

    def __init__(self, boundary: bytes, sink: BinaryIO, max_file_bytes: int) -> None:
        self._sink = sink
        self._max_file_bytes = max_file_bytes
        self._upload = Upload()
        self._num_form_bytes = 0
        self._num_parts = 0
        self._header = self._value = b""
        self._name = ""
        self._is_file = self._has_ended = False
        self._text = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_headers_finished": self._headers_finished,
                "on_end": self._ended,
            },
        )

    def feed(self, data: bytes) -> None:
        before = self._upload.num_bytes
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _no_form(str(error)) from None
        self._num_form_bytes += len(data) - (self._upload.num_bytes - before)
        if self._num_form_bytes > MAX_FORM_BYTES:
            raise ApiError(413, "the form's fields are longer than 64 KiB", "body_too_large")

    def finish(self) -> Upload:
        if not self._has_ended:
            raise _no_form("it ends before its last boundary")
        if self._upload.filename is None:
            raise ApiError(400, "the form has no part 'file' with a filename", "invalid_value", _FILE)
        return self._upload

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise _no_form(f"it has more than {_MAX_PARTS} parts")
        self._name, self._text, self._is_file = "", b"", False

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = options.get(b"name", b"").decode(errors="replace")
            if self._name == _FILE and b"filename" in options:
                if self._upload.filename is not None:
                    raise ApiError(400, "the form has two parts 'file'", "invalid_value", _FILE)
                self._is_file = True
                self._upload.filename = options[b"filename"].decode(errors="replace")[:255] or "upload"
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        if not self._name:
            raise _no_form("a part has no name")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._text += data[start:end]
            return
        self._upload.num_bytes += end - start
        if self._upload.num_bytes > self._max_file_bytes:
            raise _too_large(self._max_file_bytes)
        self._sink.write(data[start:end])

    def _end(self) -> None:
        if self._is_file:
            return
        if self._name in self._upload.fields or self._name == _FILE:
            problem = "twice" if self._name in self._upload.fields else "without a filename"
            raise ApiError(
                400, f"the form has the part {self._name[:100]!r} {problem}", "invalid_value", self._name[:100]
            )
        self._upload.fields[self._name] = self._text.decode(errors="replace")

    def _ended(self) -> None:
        self._has_ended = True


def _no_form(why: str) -> ApiError:
    return ApiError(400, f"the body is not a multipart form: {why}", "invalid_multipart")


def _too_large(max_file_bytes: int) -> ApiError:
    message = f"the file is longer than {format_bytes(max_file_bytes)}; split it or raise --max-file-mib"
    return ApiError(413, message, "body_too_large", _FILE)
