"""A reward model on preferences, as a result of the same form that lm-eval's tasks have: chosen over rejected is right.

So two reward models, or one at two quantizations, are compared item by item by the same code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qserve.errors import UsageError, WorkerFailed
from qserve.evaluation.harness import Progress
from qserve.evaluation.server import ServedModel, post_json
from qserve.evaluation.suites import task_folders
from qserve.reward.evaluation.records import Record, read_records

__all__ = ["conversations_of", "demo_preferences", "evaluate_preferences", "read_preferences"]

_ITEMS_A_REQUEST = 32


def demo_preferences() -> Path:
    """Held-out preferences of the demo reward model."""
    found = [path for folder in task_folders() if (path := folder / "qserve_demo" / "preferences.jsonl").is_file()]
    if not found:
        raise UsageError("the demo's preferences are not installed; name a file of pairs with --preferences")
    return found[0]


def read_preferences(file: Path, limit: int | None, unread: Counter[str] | None = None) -> list[Record]:
    """The file's preferences, the first `limit` of them; `unread` counts the fields that nothing reads.

    Raises UsageError for a line that states none.
    """
    records = read_records(file, unread)[:limit]
    without = next((record for record in records if record.num_chosen is None), None)
    if without is not None:
        raise UsageError(f"{file}, line {without.line} is not a preference: it needs chosen and rejected")
    return records


def conversations_of(records: Sequence[Record]) -> list[Any]:
    """Every answer of every preference in its whole conversation, in order."""
    return [content for record in records for content in record.contents]


def evaluate_preferences(
    served: ServedModel, name: str, records: Sequence[Record], progress: Progress
) -> dict[str, Any]:
    """The rewards of every preference, in the form of lm-eval's result: results, samples, n-samples.

    An item is right when every chosen answer has a higher reward than every rejected one. Raises WorkerFailed or
    UsageError when the server does not answer.
    """
    samples = []
    for start in range(0, len(records), _ITEMS_A_REQUEST):
        part = records[start : start + _ITEMS_A_REQUEST]
        rewards = iter(_rewards(served, [content for record in part for content in record.contents]))
        samples += [_sample(record, [next(rewards) for _ in record.contents]) for record in part]
        progress(len(samples), len(records))
    right = sum(sample["acc"] for sample in samples) / len(samples)
    return {
        "results": {name: {"alias": name, "acc,none": right, "acc_stderr,none": _stderr(right, len(samples))}},
        "samples": {name: samples},
        "n-samples": {name: {"original": len(samples), "effective": len(samples)}},
        "n-shot": {name: 0},
        "higher_is_better": {name: {"acc": True}},
    }


def _sample(record: Record, rewards: Sequence[float]) -> dict[str, Any]:
    num_chosen = record.num_chosen or 0
    rewards = record.alike(rewards)
    is_right = min(rewards[:num_chosen]) > max(rewards[num_chosen:])  # no tie is right
    return {
        "doc_id": record.line,
        "doc_hash": hashlib.sha256(json.dumps(record.data, sort_keys=True).encode()).hexdigest(),
        "doc": dict(record.data),
        "target": "choice 0",
        "filtered_resps": [[reward, index < num_chosen] for index, reward in enumerate(rewards)],
        "metrics": ["acc"],
        "acc": float(is_right),
    }


def _stderr(share: float, num: int) -> float:
    """As lm-eval has it: the sample's standard deviation over the square root of the number of items."""
    return math.sqrt(share * (1 - share) / max(1, num - 1))


def _rewards(served: ServedModel, conversations: Sequence[Any]) -> list[float]:
    body: Mapping[str, Any] = {"model": served.model, "conversations": list(conversations)}
    answer = post_json(f"{served.url}/v1/reward", served.api_key, body)
    try:
        return [float(row["reward"]) for row in answer["data"]]
    except (LookupError, TypeError, ValueError):
        raise WorkerFailed(f"{served.url}/v1/reward did not answer with rewards") from None
