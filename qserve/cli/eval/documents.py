"""What `qserve eval --json` and `qserve eval diff --json` print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qserve.evaluation.comparison.diff import TaskDiff
    from qserve.evaluation.results import EvalResult

__all__ = ["diff_json", "result_json"]

_ABOUT = ("model", "url", "run", "engine", "engine_version", "scheme", "dtype", "kv_cache_dtype", "devices", "seed")


def result_json(result: EvalResult, warnings: Mapping[str, int]) -> dict[str, Any]:
    """All figures of a result; its answers are in its file. `warnings`: lm-eval's, and how often each came."""
    about = result.about
    return {
        **{name: about.get(name) for name in _ABOUT},
        "began_unix_s": round(about["unix_s"] - about["seconds"], 3),
        "duration_s": about["seconds"],
        "num_answers_kept": about["num_answers_kept"],
        "notes": about["notes"],
        "scores": [asdict(score) for score in result.scores()],
        "outcomes": {task: asdict(counts) for task, counts in result.outcomes().items()},
        "unscorable": {task: asdict(items) for task, items in result.unscorable().items()},
        "warnings": dict(warnings),
    }


def diff_json(diff: TaskDiff) -> dict[str, Any]:
    """One task of two results, with every item that is right in one of them only."""
    return asdict(diff)
