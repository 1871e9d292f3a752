"""`qserve.score`: rewards for a list of answers, without a server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qserve.library.flags import Value, called, flags_of

__all__ = ["score"]


def score(records: Iterable[Mapping[str, Any]], *, reward: str = "demo", **options: Value) -> list[dict[str, Any]]:
    """Each record with its `reward` (or `rewards`, or `chosen_rewards` and `rejected_rewards`), in order.

    Args:
        records: each has messages, text, prompt with response or responses, or chosen with rejected.
        reward: a folder, a single file, a hub id, or `demo`.
        options: the flags of `qserve score` by name: `base`, `pooling`, `quant`, `normalize`, …

    The model is loaded for the call, in a process of its own; a service (`qserve.up`) keeps it. A record that can't be
    scored raises QserveError. Raises UsageError for what is no record or no reward model.

    """
    with tempfile.TemporaryDirectory(prefix="qserve-score-") as folder:
        file, out = Path(folder) / "records.jsonl", Path(folder) / "scored.jsonl"
        file.write_text("".join(json.dumps(dict(record), ensure_ascii=False) + "\n" for record in records))
        called("score", str(file), f"--output={out}", *flags_of({"reward": reward, **options}))
        return [json.loads(line) for line in out.read_text().splitlines()]
