"""`qserve.score`: rewards for a list of answers or a file of them, without a server."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qserve.errors import UnusableResult, UsageError
from qserve.library.flags import Value, called, flags_of

__all__ = ["score"]

_NEEDED = "each record is a dict such as {'prompt': …, 'response': …}"


def score(
    records: Iterable[Mapping[str, Any]] | str | Path, *, reward: str = "demo", **options: Value
) -> list[dict[str, Any]]:
    """Each record with its `reward` (or `rewards`, or `chosen_rewards` and `rejected_rewards`), in order.

    Args:
        records: each has messages, text, prompt with response or responses, or chosen with rejected. Or a file of JSON
            lines.
        reward: a folder, a single file, a hub id, or `demo`.
        options: the flags of `qserve score` by name: `base`, `pooling`, `quant`, `normalize`, `url`, …

    The model is loaded for the call, in a process of its own; a service (`qserve.up`) keeps it. A record that can't be
    scored has an `error` instead, and a warning tells how many do; `strict=True` raises UsageError for the first.
    Raises UsageError for what is no record or no reward model.

    """
    with tempfile.TemporaryDirectory(prefix="qserve-score-") as folder:
        if isinstance(records, str | Path):
            file = Path(records)
        else:
            file = Path(folder) / "records.jsonl"
            file.write_text("".join(_lines(records)))
        out = Path(str(options.pop("output", None) or Path(folder) / "scored.jsonl"))
        source = {} if options.get("url") is not None else {"reward": reward}
        try:
            called("score", f"--output={out}", *flags_of({**source, **options}), "--", str(file))
        except UnusableResult as error:
            warnings.warn(str(error).partition(";")[0], stacklevel=2)
        return [json.loads(line) for line in out.read_bytes().splitlines()]


def _lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Raises UsageError for what is no list of records, with what it is."""
    if isinstance(records, Mapping):
        raise UsageError("qserve.score takes a list of records or a file; this is one record: put it into a list")
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise UsageError(f"records[{number}] is {type(record).__name__} {str(record)[:40]!r}; {_NEEDED}")
        yield json.dumps(dict(record), ensure_ascii=True) + "\n"
