"""Every file of texts that a command reads is said what it is: empty, a folder, compressed, a table, no UTF-8."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qserve.batches.check import check_file
from qserve.bench.dataset import read_dataset
from qserve.cli.batch.results import endpoint_of
from qserve.encodings import kind_of, no_utf8, read_text
from qserve.errors import UsageError
from qserve.evaluation.text_files import read_documents
from qserve.reward.evaluation.records import read_records
from qserve.service.load import price_file, speed_request_of
from qserve.training.data.prepare import check_source

LINE = {
    "prompt": "q",
    "response": "a",
    "text": "t",
    "url": "/v1/chat/completions",
    "custom_id": "1",
    "method": "POST",
    "body": {"model": "m", "messages": []},
    "arrival": 0.5,
    "input": 10,
    "output": 3,
    "completion": "ü",
}
LINES = "".join(json.dumps(LINE, ensure_ascii=False) + "\n" for _ in range(3))


def _batch(file: Path) -> None:
    found = check_file(file, "/v1/chat/completions", 10, 1 << 20)
    if found.errors and found.errors[0].code != "unknown_parameter":
        raise UsageError(f"line {found.errors[0].line}: {found.errors[0].message}")


READERS: dict[str, Callable[[Path], Any]] = {
    "score": read_records,
    "bench --dataset": read_dataset,
    "eval --tasks": read_documents,
    "batch": endpoint_of,
    "/v1/batches": _batch,
    "train": lambda file: check_source(str(file), "sft"),
    "plan --trace": lambda file: speed_request_of({"trace": file}),
    "--prices": price_file,
}


def _zip() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a.jsonl", LINES)
    return target.getvalue()


def _database(folder: Path) -> bytes:
    with sqlite3.connect(folder / "a.db") as base:
        base.execute("CREATE TABLE a (b)")
    return (folder / "a.db").read_bytes()


BROKEN = {
    "is empty": b"",
    "gzip data": gzip.compress(LINES.encode()),
    "bzip2 data": bz2.compress(LINES.encode()),
    "xz data": lzma.compress(LINES.encode()),
    "zlib data": zlib.compress(LINES.encode()),
    "a zip archive": _zip(),
    "a Parquet file": b"PAR1" + bytes(50),
    "UTF-16 text": LINES.encode("utf-16"),
    "UTF-32 text": LINES.encode("utf-32"),
    "is UTF-16 text": LINES.encode("utf-16-be"),
    "binary data": bytes(40),
    "zstd data": b"\x28\xb5\x2f\xfd" + bytes(9),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_text_is_named(tmp_path: Path, reader: str, what: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(BROKEN[what])
    with pytest.raises(UsageError, match=what):
        READERS[reader](file)


@pytest.mark.parametrize("reader", READERS)
def test_a_byte_of_another_encoding_is_told_with_its_line(tmp_path: Path, reader: str) -> None:
    file = tmp_path / "a.jsonl"
    first, _, rest = LINES.partition("\n")
    for number, text in ((1, LINES), (2, f"\n{first}\n{rest}")):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(UsageError, match=r"(?s)(line|jsonl:) ?[12]\b.*not UTF-8: 0xfc is its byte \d+") as refused:
            READERS[reader](file)
        assert any(f"{word}{number}" in str(refused.value) for word in ("line ", ".jsonl:"))


@pytest.mark.parametrize("reader", READERS)
def test_blank_lines_and_folders_and_nothing(tmp_path: Path, reader: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\n \r\n\n")
    with pytest.raises(UsageError, match=r"blank|no row"):
        READERS[reader](file)
    if reader != "train":  # which takes folders of files
        with pytest.raises(UsageError, match="folder"):
            READERS[reader](tmp_path)
    with pytest.raises(UsageError, match=r"no such file|no file"):
        READERS[reader](tmp_path / "none.jsonl")


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"--prices"}))
@pytest.mark.parametrize("begin", [b"", codecs.BOM_UTF8], ids=["plain", "with a mark"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_marks_and_line_ends_of_other_systems_are_taken(tmp_path: Path, reader: str, begin: bytes, end: bytes) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(begin + LINES.encode().replace(b"\n", end))
    READERS[reader](file)


@given(text=st.text(min_size=1).filter(str.strip))
def test_any_text_is_read_as_it_is(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.txt"
    data = text.encode(errors="replace")
    file.write_bytes(data)
    if kind_of(data[:16]) is None and data.strip():
        assert read_text(file, "a text") == data.decode().removeprefix("\ufeff").replace("\r\n", "\n")


@given(before=st.text(), after=st.binary())
def test_the_place_of_a_wrong_byte(before: str, after: bytes) -> None:
    data = before.encode(errors="replace") + b"\xff" + after
    place = len(before.encode(errors="replace"))
    lines = data[:place].split(b"\n")
    assert no_utf8(data, place) == f"line {len(lines)} is not UTF-8: 0xff is its byte {len(lines[-1]) + 1}"
