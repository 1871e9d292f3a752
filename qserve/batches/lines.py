"""One line of a batch's input file: read, and checked by what OpenAI asks of it. Pure, but for reading the file."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from qserve.batches.records import LineError
from qserve.units import format_bytes
from qserve.wire.describe_json import describe_json

__all__ = ["LineCheck", "Request", "input_lines", "read_request"]

# Beside the body: custom_id, method and url.
_ENVELOPE_BYTES = 64 * 1024
_MAX_ID_CHARS = 512
_NAMES = frozenset({"custom_id", "method", "url", "body"})


class Request(msgspec.Struct, frozen=True):
    """A line that was checked before; `body` as the client wrote it."""

    custom_id: str
    body: msgspec.Raw


def read_request(line: bytes) -> Request:
    """A line that was checked before."""
    return msgspec.json.decode(line, type=Request)


def input_lines(path: Path, max_body_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines that hold something, with their numbers from 1; None for one that is too long to be read.

    The mark that some editors begin a file of UTF-8 with is no part of the first.
    """
    most = max_body_bytes + _ENVELOPE_BYTES
    with path.open("rb") as file:
        number = 0
        while line := file.readline(most):
            number += 1
            if len(line) == most and not line.endswith(b"\n"):
                while (rest := file.readline(most)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            elif line := (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                yield number, line


@dataclass
class LineCheck:
    """Checks the lines of one file, one after the other: what must hold among them is kept in it."""

    endpoint: str
    max_body_bytes: int

    def __post_init__(self) -> None:
        self.model = ""
        self._seen: set[str] = set()

    def error_of(self, number: int, line: bytes | None) -> LineError | None:
        """What is wrong with a line; None where it is well."""
        if line is None:
            return self._too_large(number)
        try:
            value = msgspec.json.decode(line)
        except UnicodeDecodeError as error:
            byte = f"{error.object[error.start]:#04x} is its byte {error.start + 1}"
            message = f"this line is not UTF-8: {byte}; JSON is written in UTF-8"
            return LineError("invalid_json_line", message, number)
        except (msgspec.DecodeError, RecursionError) as error:
            return LineError("invalid_json_line", f"this line is not valid JSON: {error}", number)
        if not isinstance(value, dict):
            return LineError("invalid_json_line", f"this line is {describe_json(value)}; an object is needed", number)
        return self._of_envelope(number, value) or self._of_body(number, value["body"])

    def _of_envelope(self, number: int, value: dict[str, Any]) -> LineError | None:
        custom_id = value.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id or len(custom_id) > _MAX_ID_CHARS:
            message = _needed(value, "custom_id", f"a string of 1 to {_MAX_ID_CHARS} characters")
            return LineError("missing_required_parameter", message, number, "custom_id")
        if custom_id in self._seen:
            message = f"the custom_id {custom_id[:100]!r} is on an earlier line too; each must be unique"
            return LineError("duplicate_custom_id", message, number, "custom_id")
        self._seen.add(custom_id)
        if unknown := value.keys() - _NAMES:
            name = sorted(unknown)[0][:100]
            return LineError("unknown_parameter", f"'{name}' is not a field of a line", number, name)
        if value.get("method") != "POST":
            return LineError("invalid_method", _needed(value, "method", "'POST'"), number, "method")
        if value.get("url") != self.endpoint:
            message = _needed(value, "url", f"'{self.endpoint}', the endpoint of the batch,")
            return LineError("invalid_url", message, number, "url")
        if not isinstance(value.get("body"), dict):
            return LineError("missing_required_parameter", _needed(value, "body", "an object"), number, "body")
        return None

    def _of_body(self, number: int, body: dict[str, Any]) -> LineError | None:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            message = _needed(body, "model", "the name of a model", "body.")
            return LineError("missing_required_parameter", message, number, "body.model")
        self.model = self.model or model
        if model != self.model:
            message = f"'body.model' is {model[:100]!r}, earlier lines have {self.model[:100]!r}; a batch has one model"
            return LineError("mismatched_model", message, number, "body.model")
        if body.get("stream"):
            return LineError("invalid_request", "a batch has no streams; leave 'stream' out", number, "body.stream")
        return None

    def _too_large(self, number: int) -> LineError:
        message = f"the line is longer than {format_bytes(self.max_body_bytes)}; send less or raise --max-body-mib"
        return LineError("body_too_large", message, number, "body")


def _needed(given: dict[str, Any], name: str, needed: str, within: str = "") -> str:
    """What was seen, and what is needed."""
    found = f"is {describe_json(given[name])}" if name in given else "is missing"
    return f"'{within}{name}' {found}; {needed} is needed"
