"""What the Grafana dashboard asks Prometheus for: shared by the tests that hold it against a running service."""

from __future__ import annotations

import json
import re
from pathlib import Path

FILE = Path(__file__).parents[1] / "configs" / "grafana" / "qserve.json"
DASHBOARD = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
METRICS = {name for text in EXPRESSIONS for name in re.findall(r"\b(?:qserve_|vllm:)\w+", text)}


def samples_of(exposition: str) -> set[str]:
    """Names of a scrape's samples; of a histogram that was never observed, those that it would have."""
    names = {re.split(r"[{ ]", line)[0] for line in exposition.splitlines() if line and not line.startswith("#")}
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", exposition, re.MULTILINE):
        names |= {f"{name}_{end}" for end in ("bucket", "sum", "count")} if kind == "histogram" else {name}
    return names
