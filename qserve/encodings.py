"""What bytes are that should be text in UTF-8: compressed, a table, UTF-16.

For the bodies of requests and for the files that commands read.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path

from qserve.errors import UsageError

__all__ = ["HEAD_BYTES", "check_text_file", "kind_of", "no_utf8", "read_text", "wrong_byte"]

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
_MAGIC_BEGINS = frozenset(magic[:1] for magic in _MAGIC)
_ENCODINGS = {
    "utf-16": "UTF-16 text",
    "utf-16-le": "UTF-16 text",
    "utf-16-be": "UTF-16 text",
    "utf-32": "UTF-32 text",
    "utf-32-le": "UTF-32 text",
    "utf-32-be": "UTF-32 text",
}


def kind_of(head: bytes) -> str | None:
    """What begins so, where it is no text in UTF-8; None for what may be one. A few bytes are enough."""
    if head[:1] in _MAGIC_BEGINS:
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                return kind
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in head[:4]:
        return _ENCODINGS.get(json.detect_encoding(head[:4]), "binary data") if any(head[:4]) else "binary data"
    return None


def wrong_byte(data: bytes) -> int | None:
    """Where the first byte is that UTF-8 does not have there; None if all is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def check_text_file(file: Path, needed: str, where: str = "") -> None:
    """Raises UsageError for what is no file of text by its first bytes: nothing, a folder, compressed, a table, UTF-16.

    `needed`: what the file should be, as in "a file of JSON lines"; `where`: how messages name it [its path].
    """
    where = where or str(file)
    if file.is_dir():
        raise UsageError(f"{where} is a folder; {needed} is needed")
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except FileNotFoundError:
        raise UsageError(f"{where}: there is no such file; {needed} is needed") from None
    except OSError as error:
        raise UsageError(f"{where} can't be read ({error.strerror}); {needed} is needed") from None
    if not head:
        raise UsageError(f"{where} is empty; {needed} is needed")
    if (kind := kind_of(head)) is not None:
        raise UsageError(f"{where} is {kind}; {needed} is needed, as plain text in UTF-8")


def read_text(file: Path, needed: str, where: str = "") -> str:
    """A whole file, without the mark that some editors begin UTF-8 with.

    Raises UsageError as `check_text_file`, for a file of blanks alone, and for one that is not UTF-8, with the line.
    """
    check_text_file(file, needed, where)
    try:
        data = file.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise UsageError(f"{where or file} can't be read ({error.strerror}); {needed} is needed") from None
    if (place := wrong_byte(data)) is not None:
        raise UsageError(f"{where or file}, {no_utf8(data, place)}; save it as UTF-8 (iconv -f LATIN1 -t UTF-8)")
    if not data or data.isspace():
        raise UsageError(f"{where or file} has only blank lines; {needed} is needed")
    return data.decode().replace("\r\n", "\n")


def no_utf8(data: bytes, place: int, line: int = 1) -> str:
    """Where in `data`, which begins with this line, the byte at `place` is that UTF-8 does not have there."""
    begun = data.rfind(b"\n", 0, place) + 1
    line += data.count(b"\n", 0, place)
    return f"line {line} is not UTF-8: {data[place]:#04x} is its byte {place - begun + 1}"
