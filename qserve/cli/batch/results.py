"""Writes the results of a batch to a local file: in the order of the requests, complete or not at all."""

from __future__ import annotations

import codecs
import json
import tempfile
from pathlib import Path
from typing import Any

from qserve.cli.batch.client import BatchServer
from qserve.cli.batch.endpoints import ENDPOINTS
from qserve.encodings import check_text_file, no_utf8, wrong_byte
from qserve.errors import UsageError

__all__ = ["endpoint_of", "write_results"]

_NEEDED = (
    'a request a line, as {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": …, '
    '"messages": […]}},'
)


def endpoint_of(file: Path) -> str:
    """The `url` of the first line. Raises UsageError where there is none, with what there is."""
    check_text_file(file, _NEEDED)
    with file.open("rb") as lines:
        number, first = next(((number, line) for number, line in enumerate(lines, 1) if line.strip()), (0, b""))
    if not number:
        raise UsageError(f"{file} has only blank lines; {_NEEDED} is needed")
    first = first.removeprefix(codecs.BOM_UTF8)
    if (place := wrong_byte(first)) is not None:
        raise UsageError(f"{file}, {no_utf8(first, place, number)}; {_NEEDED} is needed, in UTF-8")
    try:
        request = json.loads(first)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}, line {number} is not valid JSON ({str(error)[:120]}); {_NEEDED} is needed") from None
    if not isinstance(request, dict) or not isinstance(request.get("url"), str):
        what = (
            f"has no 'url' but {', '.join(map(str, request))[:200]}"
            if isinstance(request, dict)
            else "is not an object"
        )
        raise UsageError(f"{file}, line {number} is not a request: it {what}; {_NEEDED} is needed")
    if request["url"] not in ENDPOINTS:
        raise UsageError(
            f"{file}, line {number}: {request['url'][:100]!r} is not a route for batches; it is one of "
            f"{', '.join(ENDPOINTS)}"
        )
    return str(request["url"])


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
