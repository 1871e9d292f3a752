"""What `qserve batch --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["batch_json"]


def batch_json(batch: Mapping[str, Any], written: Mapping[str, Path]) -> dict[str, Any]:
    """The batch with its counts, and the files that were written by their kind: output, error."""
    counts = batch["request_counts"]
    return {
        "id": batch["id"],
        "status": batch["status"],
        "endpoint": batch["endpoint"],
        "num_requests": counts["total"],
        "num_completed": counts["completed"],
        "num_failed": counts["failed"],
        "output_file": str(written["output"]) if "output" in written else None,
        "error_file": str(written["error"]) if "error" in written else None,
    }
