"""What bench/gpu.py measured so far, the time that is left, and the files that are written as it goes on."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from bench.gpu_steps.report import table
from bench.gpu_steps.rows import is_well, sentence

__all__ = ["Run"]

# A step that was begun in time may end this much late.
_GRACE_S = 10


@dataclass
class Run:
    """`result` is what the JSON file holds; rows stand in it by group."""

    budget_s: float
    out: Path
    began_s: float = field(default_factory=time.monotonic)
    result: dict[str, Any] = field(default_factory=dict)
    _stem: Path | None = None

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began_s)

    @property
    def read_bytes_per_s(self) -> float:
        """Of the device as measured in this run, else any number: what is planned by it is then no figure."""
        limits = self.result.get("limits", {})
        return float(limits["measured"]["read_bytes_per_s"]) if "measured" in limits else 1e12

    @property
    def log_path(self) -> Path:
        """What services print."""
        assert self._stem is not None, "begun"
        return self._stem.with_name(self._stem.name + "-services.log")

    @property
    def is_well(self) -> bool:
        return is_well(self.result)

    def begin(self, about: dict[str, Any]) -> None:
        """Name the files by the card and the day."""
        self.result = {"card": about["card"], "date": date.today().isoformat(), "seconds": 0.0, **about}
        versions = ", ".join(f"{name} {value}" for name, value in about["versions"].items())
        print(f"gpu: {about['card']}; {versions}", flush=True)
        name = re.sub("[^a-z0-9]+", "-", about["card"].lower()).strip("-")
        self._stem = self._writable() / f"gpu-{name}-{self.result['date']}-{time.strftime('%H%M')}"

    def _writable(self) -> Path:
        """`out`, or a new folder where nothing can be written there: a checkout may be mounted for reading only."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.out):
                return self.out
        except OSError as error:
            folder = Path(tempfile.mkdtemp(prefix="qserve-gpu-"))
            print(f"gpu: {error}; writing to {folder} instead", flush=True)
            return folder

    def add(self, group: str, row: dict[str, Any]) -> None:
        """Keep a row, print it while the rest still runs, and write the files."""
        self.result.setdefault(group, []).append(row)
        print(f"{self.left_s:4.0f} s left  {group}: {sentence(row)}", flush=True)
        self.write()

    def attempt(
        self,
        group: str,
        what: dict[str, Any],
        ask: Callable[[float], dict[str, Any]],
        most_s: float,
        needs_s: float = 15,
        lacks: str | None = None,
    ) -> dict[str, Any]:
        """The row of a step, which `ask` gives within the seconds that it is told; skipped where time is short."""
        if lacks is None and self.left_s < needs_s:
            lacks = f"needs about {needs_s:.0f} s of {max(0, self.left_s):.0f} s left"
        start = time.monotonic()
        row: dict[str, Any] = {"ok": None, "skipped": lacks} if lacks else ask(min(most_s, self.left_s + _GRACE_S))
        if "error" in row:
            row["ok"] = False
        row = {**what, **row, "seconds": time.monotonic() - start}
        self.add(group, row)
        return row

    def write(self) -> None:
        """The JSON and the table as they are now."""
        if self._stem is None:
            return
        self.result["seconds"] = time.monotonic() - self.began_s
        self._stem.with_suffix(".json").write_text(json.dumps(self.result, indent=1) + "\n")
        self._stem.with_suffix(".md").write_text(table(self.result))

    def end(self) -> None:
        """Show the table, and where it is."""
        self.write()
        print(f"\n{table(self.result)}\nwritten: {self._stem}.json and .md")
