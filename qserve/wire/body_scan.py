"""Scans a large body without parsing its values: is it JSON, which fields does it have, how long is each.

msgspec skips values at 1 GB/s and stops at the first unknown field, where a full parse would first build an object for
each of a million fields.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
from pydantic_core import from_json

from qserve.encodings import HEAD_BYTES, kind_of, wrong_byte
from qserve.units import format_bytes
from qserve.wire.errors import ApiError, unknown_field

__all__ = ["MAX_PART_BYTES", "BodyScan", "check_encoding", "not_json", "read_object", "scan_body", "utf8_json"]

# What holds no text is never long: a schema, tools, arguments of a template.
MAX_PART_BYTES = 1 << 20
_TEXTS = frozenset(
    {
        "conversations",
        "documents",
        "input",
        "input_ids",
        "inputs",
        "items",
        "labels",
        "messages",
        "pairs",
        "prompt",
        "prompts",
        "queries",
        "query",
        "questions",
        "responses",
        "system",
        "text",
        "texts",
        "token_ids",
        "tokens",
        "user",
    }
)
_UNKNOWN_NAME = re.compile(r"unknown field `(.*)`", re.DOTALL)
_MAX_UNKNOWN_NULLS = 32
_NOT_GIVEN = msgspec.Raw(b"")


@dataclass(frozen=True)
class BodyScan:
    """The length of each part in bytes, and the model that the body names."""

    model: str | None
    part_bytes: dict[str, int]


def check_encoding(encoding: str) -> None:
    """Raises ApiError 415 for a Content-Encoding: bodies are read as they are, so their length says what they hold."""
    if encoding.strip().lower() not in ("", "identity"):
        message = (
            f"the body is sent with Content-Encoding: {encoding[:100]}; bodies are not decompressed: send it "
            "uncompressed, without that header or with identity"
        )
        raise ApiError(415, message, "unsupported_encoding")


def utf8_json(body: bytes) -> bytes:
    """The body without the byte order mark that some clients begin with. Raises ApiError 400 for what is no UTF-8 text.

    A JSON parser would say of each of these only that a value is expected.
    """
    if not body or body.isspace():
        raise ApiError(400, "the body is empty; a JSON object is needed", "invalid_json")
    if (kind := kind_of(body[:HEAD_BYTES])) is not None:
        raise ApiError(400, f"the body is {kind}; JSON is sent as plain text in UTF-8", "invalid_json")
    return body.removeprefix(codecs.BOM_UTF8)


def not_json(body: bytes, why: object) -> ApiError:
    """The 400 for a body that a parser refused with `why`. Of a body that is not UTF-8 it names the byte."""
    if (place := wrong_byte(body)) is not None:
        message = f"the body is not UTF-8 at byte {place} ({body[place]:#04x}); JSON is sent in UTF-8"
        return ApiError(400, message, "invalid_json")
    return ApiError(400, f"the body is not valid JSON: {why}", "invalid_json")


def scan_body(body: bytes, names: frozenset[str] | None = None) -> BodyScan:
    """Raises ApiError 400 for what is not a JSON object, a name that is not in `names`, or a part that is too long."""
    parts = _parts(utf8_json(body), names)
    sizes = {name: len(memoryview(part)) for name, part in parts.items()}
    for name, num_bytes in sizes.items():
        if num_bytes > MAX_PART_BYTES and name not in _TEXTS:
            message = f"'{name[:100]}' is {format_bytes(num_bytes)} long; it may have {format_bytes(MAX_PART_BYTES)}"
            raise ApiError(400, message, "invalid_value", name[:100])
    return BodyScan(_model(parts.get("model", _NOT_GIVEN)), sizes)


def _parts(body: bytes, names: frozenset[str] | None) -> dict[str, msgspec.Raw]:
    try:
        if names is None:
            return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        return _of_names(body, names)
    except msgspec.ValidationError:
        raise ApiError(400, "the body must be a JSON object", "invalid_value") from None
    except msgspec.DecodeError as error:
        raise not_json(body, error) from None
    except RecursionError:
        raise ApiError(400, "the body is not JSON that can be read: it is nested too deeply", "invalid_json") from None


def _of_names(body: bytes, names: frozenset[str], num_nulls: int = 0) -> dict[str, msgspec.Raw]:
    """The parts by name. Null means "not given", whatever the name: clients write out every field they know."""
    decoder, names_of = _decoder(names)
    try:
        found = decoder.decode(body)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN_NAME.search(str(error))
        if unknown is None:
            raise
        is_null = re.search(rb'"%b"\s*:\s*null' % re.escape(unknown[1].encode()), body)
        if is_null is None or num_nulls == _MAX_UNKNOWN_NULLS:
            raise unknown_field(unknown[1], names) from None
        return _of_names(body, names | {unknown[1]}, num_nulls + 1)
    return {name: part for at, name in names_of.items() if (part := getattr(found, at)) is not _NOT_GIVEN}


@lru_cache(maxsize=64)
def _decoder(names: frozenset[str]) -> tuple[msgspec.json.Decoder[Any], dict[str, str]]:
    """Reads objects of these names, values left as bytes; and which attribute stands for which name."""
    names_of = {f"part_{number}": name for number, name in enumerate(sorted(names))}
    fields = [(at, msgspec.Raw, _NOT_GIVEN) for at in names_of]
    struct = msgspec.defstruct("Body", fields, rename=names_of, forbid_unknown_fields=True)
    return msgspec.json.Decoder(struct), names_of


def _model(part: msgspec.Raw) -> str | None:
    """None for anything but a string; whoever reads the body in full says what is wrong with it."""
    try:
        return msgspec.json.decode(part, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_object(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises ApiError 400 if it is not valid JSON, or not an object."""
    try:
        value = from_json(utf8_json(body))
    except ValueError as error:
        raise not_json(body, error) from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_value")
    return value
