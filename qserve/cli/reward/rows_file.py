"""The rows that a command writes while it scores: whole lines, in the order of the input; --resume continues a file.

While a file is unfinished a second one beside it, FILE.resume.json, says what its rows were made of.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qserve.cli.command_line import this_command
from qserve.errors import QserveError, UsageError
from qserve.hub import cache
from qserve.hub.revisions import split_revision
from qserve.units import format_bytes

__all__ = ["RowsFile", "RowsNotWritten", "RowsOut", "StandardOutput", "fingerprint"]

# What `row_of` adds to a line, for each of its texts.
_BYTES_A_TEXT = 60
# Of `meta`: counts of a request or since a start, which do not say how a text is scored.
_COUNTS = ("judges", "rules_failed", "truncated")


class RowsNotWritten(QserveError):
    """A full disk, or a file that may not grow."""


class RowsOut:
    """Where rows go; this one only counts them.

    `num_written` are there; `kept` are those of an earlier run, which this one continues.
    """

    def __init__(self) -> None:
        self.num_written = 0
        self.kept: list[dict[str, Any]] = []

    def begin(self, meta: Mapping[str, Any] | None) -> None:
        """The model is loaded, and scores so; None: no text is left to score."""

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises RowsNotWritten; what was there stays, in whole lines."""
        self.num_written += len(rows)

    def finish(self) -> None:
        """All rows are there."""

    def kept_text(self, num_rows: int) -> str:
        """What is left of a run that ends here, and how it continues."""
        return f"{self.num_written:,} of {num_rows:,} rows were scored and none is kept; --output FILE keeps them"


class StandardOutput(RowsOut):
    """Rows for a pipe."""

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises RowsNotWritten."""
        try:
            sys.stdout.write(_lines(rows).decode())
            sys.stdout.flush()
        except OSError as error:
            with Path(os.devnull).open("w") as nowhere:  # at exit Python tries once more to write what is left
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
            raise RowsNotWritten(f"rows can't be written to standard output: {error.strerror}") from error
        self.num_written += len(rows)

    def kept_text(self, num_rows: int) -> str:
        return f"{self.num_written:,} of {num_rows:,} rows were written; with --output FILE a run can be resumed"


class RowsFile(RowsOut):
    """Rows in a file."""

    def __init__(self, path: Path, about: Mapping[str, Any], *, resume: bool) -> None:
        """`about`: what the rows depend on, by what people call it; None: not known here.

        Raises UsageError for a file that can't be written or continued, or that an interrupted run would lose.
        """
        super().__init__()
        self._path, self._about = path, {name: value for name, value in about.items() if value is not None}
        self._note = path.with_name(f"{path.name}.resume.json")
        self._descriptor: int | None = None
        self._meta: dict[str, Any] | None = None
        _check_place(path)
        if resume:
            self._read_kept()
        elif self._note.exists() and path.exists() and (count := path.read_bytes().count(b"\n")):
            raise UsageError(
                f"{path} has {count:,} rows of a run that was interrupted; continue it with --resume, or delete "
                f"{self._note.name} to start again"
            )
        self.num_written = len(self.kept)

    def check_room(self, num_bytes: int, num_texts: int) -> None:
        """Raises UsageError where the disk is too full for the rows of an input of this size."""
        needed = num_bytes + _BYTES_A_TEXT * num_texts
        free = shutil.disk_usage(self._path.absolute().parent).free
        if free < needed and (self._path.is_file() or not self._path.exists()):
            raise UsageError(
                f"{self._path}: the rows take about {format_bytes(needed)} and the disk has {format_bytes(free)} left; "
                "make room, or name a file on another disk"
            )

    def begin(self, meta: Mapping[str, Any] | None) -> None:
        """Raises UsageError where the rows that are kept were scored otherwise, RowsNotWritten for a full disk."""
        found = None
        if meta is not None:
            found = {name: value for name, value in json.loads(json.dumps(meta)).items() if name not in _COUNTS}
        if self._meta is not None and found is not None and (differing := _differing(self._meta, found)):
            raise UsageError(f"{self._path} can't be continued: {differing}; name another --output, or delete it")
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            if self._is_regular:
                if not self.kept:
                    os.ftruncate(self._descriptor, 0)
                self._note.write_text(json.dumps({"about": self._about, "meta": found}, indent=2) + "\n")
        except OSError as error:
            raise RowsNotWritten(f"{self._path} can't be written: {error.strerror}") from error

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises RowsNotWritten, with the file as it was before."""
        assert self._descriptor is not None, "begin() comes first"
        whole = os.fstat(self._descriptor).st_size
        data = memoryview(_lines(rows))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            if self._is_regular:
                os.ftruncate(self._descriptor, whole)
            raise RowsNotWritten(f"rows can't be written to {self._path}: {error.strerror}") from error
        self.num_written += len(rows)

    def finish(self) -> None:
        """There is nothing to continue any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._note.unlink(missing_ok=True)

    def kept_text(self, num_rows: int) -> str:
        """With the command that continues."""
        if not self.num_written:
            return "no row was written"
        kept = f"{self.num_written:,} of {num_rows:,} rows are in {self._path}"
        return f"{kept}; continue with:\n  {this_command('--resume')}" if self._is_regular else kept

    @property
    def _is_regular(self) -> bool:
        return self._path.is_file()

    def _read_kept(self) -> None:
        if not self._path.exists() or not self._path.stat().st_size:
            return
        if not self._note.exists():
            raise UsageError(
                f"{self._path} is complete, or another program wrote it: {self._note.name}, which an interrupted run "
                "leaves, is missing; leave --resume out to start again"
            )
        try:
            note = json.loads(self._note.read_text())
            about, self._meta = note["about"], note["meta"]
            data = self._path.read_bytes()
            whole = data.rfind(b"\n") + 1
            self.kept = [json.loads(line) for line in data[:whole].splitlines()]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self._path} can't be continued: it or {self._note.name} is damaged ({error})") from None
        if differing := _differing(about, json.loads(json.dumps(self._about))):
            raise UsageError(f"{self._path} can't be continued: {differing}; name another --output, or delete it")
        os.truncate(self._path, whole)


def fingerprint(name: str) -> str | None:
    """Changes when a file of the checkpoint, the recipe or the input changes; None where there is none here."""
    path = Path(name).expanduser()
    found = path if path.exists() else cache.snapshot(*split_revision(name, "--reward-revision"))
    if found is None:
        return None
    files = sorted(one for one in found.iterdir() if one.is_file()) if found.is_dir() else [found]
    stats = [(one.name, (stat := one.stat()).st_size, stat.st_mtime_ns) for one in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()[:16]


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What was other, by name; hashes are not told."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(
        f"{name} has changed"
        if " " in name or name.endswith("hash")
        else f"{name} was {_given(before.get(name))} and is {_given(now.get(name))}"
        for name in names
    )


def _given(value: Any) -> str:
    return "not given" if value is None else str(value)


def _check_place(path: Path) -> None:
    """Raises UsageError where no file can be written, and makes none."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{path}: there is no folder {folder}; make it first, or name another file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{path} can't be written: permission denied; name another file")


def _lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(_line(row) for row in rows)


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(row, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a character, which only an escape can write
        return (json.dumps(row) + "\n").encode()
