"""Checks the whole input file of a batch, in a process of its own: parsing 200 MB holds an interpreter for seconds.

    python -m qserve.batches.check FILE ENDPOINT MAX_LINES MAX_BODY_BYTES

prints one JSON object: what `Checked` holds.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from qserve.batches.lines import LineCheck, input_lines
from qserve.batches.records import LineError
from qserve.encodings import check_text_file
from qserve.errors import QserveError, UsageError

__all__ = ["Checked", "check_file", "checked", "main"]

# More are not told: nobody reads them, and a row should stay small.
_MOST_ERRORS = 50


@dataclass(frozen=True)
class Checked:
    """What an input file holds; with `errors` it can't be run."""

    num_lines: int
    model: str
    errors: tuple[LineError, ...]


def check_file(path: Path, endpoint: str, max_lines: int, max_body_bytes: int) -> Checked:
    """Reads every line, or as many as tell that it can't be run."""
    try:
        check_text_file(path, "a request a line", "the file")
    except UsageError as refused:
        return Checked(0, "", (LineError("invalid_file", str(refused)),))
    check = LineCheck(endpoint, max_body_bytes)
    errors: list[LineError] = []
    num_lines = 0
    for number, line in input_lines(path, max_body_bytes):
        num_lines += 1
        if num_lines > max_lines:
            message = f"the file has more than {max_lines} requests; put the rest into another batch"
            errors.append(LineError("too_many_tasks", message, number))
            break
        if error := check.error_of(number, line):
            errors.append(error)
            if len(errors) == _MOST_ERRORS:
                break
    if not num_lines:
        errors.append(LineError("empty_file", "the file has only blank lines and no request"))
    return Checked(num_lines, check.model, tuple(errors))


async def checked(path: Path, endpoint: str, max_lines: int, max_body_bytes: int) -> Checked:
    """The same by another process, which ends with who asks. Raises QserveError where it fails."""
    command = (
        "-m",
        "qserve.worker.low_priority",
        "qserve.batches.check",
        str(path),
        endpoint,
        str(max_lines),
        str(max_body_bytes),
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, complained = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        last = complained.decode(errors="replace").strip().rpartition("\n")[2]
        raise QserveError(f"the input file could not be checked: {last}")
    result = json.loads(output)
    return Checked(result["num_lines"], result["model"], tuple(LineError(**one) for one in result["errors"]))


def main() -> None:
    """The process."""
    path, endpoint, max_lines, max_body_bytes = sys.argv[1:]
    result = check_file(Path(path), endpoint, int(max_lines), int(max_body_bytes))
    sys.stdout.write(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
