"""How models of a service came into memory: seconds and bytes, for the schedule of the next one."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from statistics import median

__all__ = ["MeasuredLoads", "loads_of"]

_NEWEST = 5
_LOADED = """
SELECT event.details FROM event
JOIN plan ON plan.run = event.run AND plan.worker = event.worker
WHERE event.event = 'loaded' AND json_extract(plan.document, '$.engine') = :engine
AND json_extract(plan.document, '$.shape') = :shape
ORDER BY event.unix_s DESC LIMIT :newest
"""


@dataclass(frozen=True)
class MeasuredLoads:
    """Of the newest loads of one model: the median of their seconds, and the most that one took beyond its rest."""

    load_s: float
    starting_bytes: int


def loads_of(connection: sqlite3.Connection, engine: str, shape: str) -> MeasuredLoads | None:
    """Of plans of this shape; None: none was ever loaded here."""
    rows = connection.execute(_LOADED, {"engine": engine, "shape": shape, "newest": _NEWEST}).fetchall()
    loads = [json.loads(text) for (text,) in rows]
    if not loads:
        return None
    most = max(one.get("peak_bytes", 0) - one.get("rest_bytes", 0) for one in loads)
    return MeasuredLoads(median(one["load_s"] for one in loads), max(0, most))
