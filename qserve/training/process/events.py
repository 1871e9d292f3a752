"""What a run tells: one JSON object a line, appended by the first rank, read by whoever started it and kept."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

__all__ = ["EventLog"]


class EventLog:
    """Appends to `file`; on other ranks than the first (None) it writes nothing."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def write(self, event: str, **facts: Any) -> None:
        """One line, on the disk when this returns. A full disk costs the line, not the run."""
        if self._file is None:
            return
        line = json.dumps({"unix_s": round(time.time(), 3), "event": event, **_finite(facts)})
        try:
            with self._file.open("a") as stream:
                stream.write(line + "\n")
        except OSError:
            return


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
