"""Rows one at a time, each with the place that people find it by: of JSON lines, JSON, Parquet, Arrow, the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qserve.encodings import check_text_file, no_utf8, wrong_byte
from qserve.errors import MissingExtra, UsageError
from qserve.rows.columnar import as_written
from qserve.units import MIB, format_bytes

__all__ = ["RawRow", "rows_in"]

_KINDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
_ROWS_AT_ONCE = 256
# A JSON array is parsed whole; JSON lines of any size are not.
_LARGEST_ARRAY_BYTES = 512 * MIB


class RawRow(NamedTuple):
    """`place` is FILE:LINE (of Parquet, Arrow and the hub: the row's number from 1). `error`: why `data` is empty."""

    place: str
    data: Mapping[str, Any]
    error: str | None = None


def rows_in(source: str) -> Iterator[RawRow]:
    """Every row of a file, of a folder's files in order of name, or of a hub data set's train split.

    Raises UsageError where nothing is there, or nothing that can be read.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _KINDS)
        if not files:
            raise UsageError(f"{path} has no file of {', '.join(_KINDS)}")
        for file in files:
            yield from _of_file(file)
    elif path.is_file():
        yield from _of_file(path)
    elif path.suffix in _KINDS or source.count("/") != 1 or source.startswith((".", "~", "/")):
        raise UsageError(
            f"there is no file {source!r}: --data takes a file ({', '.join(_KINDS)}), a folder, or a hub id"
        )
    else:
        yield from _of_hub(source)


def _of_file(file: Path) -> Iterator[RawRow]:
    if file.suffix in (".parquet", ".arrow"):
        return _of_columns(file)
    if file.suffix in _KINDS:
        check_text_file(file, "a file of JSON lines, a JSON list, or rows of Parquet or Arrow under their own name")
    if file.suffix == ".json" and _first_character(file) == "[":
        return _of_array(file)
    if file.suffix in _KINDS:
        return _of_lines(file)
    raise UsageError(f"{file} is not one of {', '.join(_KINDS)}; convert it to JSON lines")


def _first_character(file: Path) -> str:
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        return next((text[0] for line in stream if (text := line.strip())), "")


def _of_lines(file: Path) -> Iterator[RawRow]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _parsed(f"{file.name}:{number}", line)


def _parsed(place: str, line: bytes) -> RawRow:
    try:
        data = json.loads(line)
    except UnicodeDecodeError as error:
        return RawRow(place, {}, f"not UTF-8: {line[error.start]:#04x} is its byte {error.start + 1}")
    except (ValueError, RecursionError) as error:
        return RawRow(place, {}, f"not valid JSON ({str(error)[:120]})")
    return _checked(place, data)


def _checked(place: str, data: Any) -> RawRow:
    if not isinstance(data, dict):
        return RawRow(place, {}, f"a JSON {type(data).__name__}; a row is an object")
    return RawRow(place, data)


def _of_array(file: Path) -> Iterator[RawRow]:
    if file.stat().st_size > _LARGEST_ARRAY_BYTES:
        raise UsageError(
            f"{file} is one JSON array of {format_bytes(file.stat().st_size)}, which would be read whole; write "
            "one object per line (jq -c '.[]'), which is streamed"
        )
    written = file.read_bytes()
    if (place := wrong_byte(written)) is not None:
        raise UsageError(f"{file}, {no_utf8(written, place)}; save it as UTF-8")
    try:
        rows = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON ({str(error)[:120]})") from None
    for number, data in enumerate(rows, 1):
        yield _checked(f"{file.name}:{number}", data)


def _of_columns(file: Path) -> Iterator[RawRow]:
    """Parquet and Arrow (file or stream) in batches."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtra("pyarrow", f"{file.name}") from None
    number = 0
    try:
        for batch in _batches(file):
            for data in batch.to_pylist():
                number += 1
                yield _checked(f"{file.name}:{number}", as_written(data, batch.schema))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{file} can't be read after {number} rows ({str(error)[:200]})") from None


def _batches(file: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    if file.suffix == ".parquet":
        with pyarrow.parquet.ParquetFile(file) as reader:
            yield from reader.iter_batches(_ROWS_AT_ONCE)
        return
    with pyarrow.memory_map(str(file)) as source:
        try:
            reader = pyarrow.ipc.open_file(source)
        except pyarrow.ArrowInvalid:
            source.seek(0)
            yield from pyarrow.ipc.open_stream(source)
            return
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def _of_hub(name: str) -> Iterator[RawRow]:
    try:
        import datasets
    except ModuleNotFoundError:
        raise MissingExtra("datasets", f"the data set {name} of the hub") from None
    try:
        rows = datasets.load_dataset(name, split="train", streaming=True)
    except Exception as error:  # the library raises a dozen kinds, from its own and from the hub's client
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"the data set {name} can't be opened ({reason}); name a file, or check the id and network"
        ) from None
    schema = rows.features.arrow_schema if rows.features is not None else None
    for number, data in enumerate(rows, 1):
        given = {key: value for key, value in data.items() if value is not None}
        row = given if schema is None else as_written(given, schema, is_decoded=True)
        yield _checked(f"{name}:{number}", row)
