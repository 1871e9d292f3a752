"""Writes the results of a batch to a local file: in the order of the requests, complete or not at all."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from qserve.cli.batch.client import BatchServer
from qserve.errors import UsageError

__all__ = ["endpoint_of", "write_results"]


def endpoint_of(file: Path) -> str:
    """The `url` of the first line. Raises UsageError where there is none."""
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        url = json.loads(first)["url"]
    except (ValueError, KeyError, TypeError, RecursionError):
        url = None
    if not isinstance(url, str):
        raise UsageError(
            f"the first line of {file} is not a request; each line is one, as "
            '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": …, "messages": […]}}'
        )
    return url


def write_results(server: BatchServer, file_id: str, target: Path, questions: Path | None) -> None:
    """Write a results file of the server to `target`, in the order of the requests in `questions` if given."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        fetched = Path(folder) / "fetched"
        server.download(file_id, fetched)
        if questions is not None:
            fetched = _in_order(fetched, questions)
        fetched.replace(target)


def _in_order(results: Path, questions: Path) -> Path:
    """Sort the lines by request; only their offsets are held in memory."""
    ordered = results.with_name("ordered")
    with results.open("rb") as lines, ordered.open("wb") as target:
        places: dict[Any, tuple[int, int]] = {}
        start = 0
        for line in lines:
            places[_id_of(line)] = (start, len(line))
            start += len(line)
        with questions.open("rb") as source:
            for question in source:
                place = places.pop(_id_of(question), None)
                if place is not None:
                    lines.seek(place[0])
                    target.write(lines.read(place[1]))
        for start, num_bytes in places.values():  # the file of requests was changed since
            lines.seek(start)
            target.write(lines.read(num_bytes))
    return ordered


def _id_of(line: bytes) -> Any:
    try:
        return json.loads(line)["custom_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
