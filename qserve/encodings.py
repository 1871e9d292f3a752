"""What bytes are that should be text in UTF-8: compressed, a table, UTF-16.

For the bodies of requests and for the files that commands read.
"""

from __future__ import annotations

import codecs
import json

__all__ = ["HEAD_BYTES", "kind_of", "wrong_byte"]

HEAD_BYTES = 16
"""As many bytes of the beginning tell the kind."""

_MAGIC = {
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"\x04\x22\x4d\x18": "lz4 data",
    b"\x78\x01": "zlib data",
    b"\x78\x9c": "zlib data",
    b"\x78\xda": "zlib data",
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "an empty zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"ORC\x01": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3\x00": "a SQLite database",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF": "an HDF5 file",
    b"%PDF-": "a PDF document",
    b"\x7fELF": "a program",
}
_ENCODINGS = {
    "utf-16": "UTF-16 text", "utf-16-le": "UTF-16 text", "utf-16-be": "UTF-16 text",
    "utf-32": "UTF-32 text", "utf-32-le": "UTF-32 text", "utf-32-be": "UTF-32 text",
}  # fmt: skip


def kind_of(head: bytes) -> str | None:
    """What begins so, where it is no text in UTF-8; None for what may be one. A few bytes are enough."""
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in head[:4]:
        return _ENCODINGS.get(json.detect_encoding(head[:4]), "binary data")
    return None


def wrong_byte(data: bytes) -> int | None:
    """Where the first byte is that UTF-8 does not have there; None if all is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None
