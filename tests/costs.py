"""What each test file costs, in seconds and in processor seconds, and what it starts: the summary names the dearest.

Each run leaves its figures in .pytest_cache, where they replace those of the same files; `make slowest` prints them.
Processes that a test started count once they have ended and were waited for: those of a service that several files
share count where the last of them stops it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.starts import KINDS, Recorder

__all__ = ["Costs", "table_of"]

_NUM_SHOWN = 20
_WALL, _CPU, _READY = "wall_s", "cpu_s", "ready_s"
_KEY = "qserve/costs"
_RECORD = Path(__file__).parents[1] / ".pytest_cache" / "v" / _KEY

ready_s: list[float] = []
"""Seconds until a service of the running test was ready; a test's report takes them along."""


@dataclass
class Cost:
    """Of one test file, or of several; of each kind of process that was started their number and processor seconds."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_tests: int = 0
    ready_s: list[float] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    started_cpu_s: dict[str, float] = field(default_factory=dict)


class Costs:
    """A plugin of pytest; in processes of pytest-xdist, too, whose reports carry what was measured there."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._files: defaultdict[str, Cost] = defaultdict(Cost)
        self._before = _clocks()
        self._recorder = None if hasattr(config, "workerinput") else Recorder()

    def pytest_collection_finish(self) -> None:
        """What collecting cost is no file's."""
        self._before = _clocks()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Hang what passed since the last report on this one."""
        report = yield
        now = _clocks()
        report.wall_s, report.cpu_s = (after - before for after, before in zip(now, self._before, strict=True))
        report.ready_s = ready_s[:]
        ready_s.clear()
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Where the summary is made: in the process that was started by hand."""
        cost = self._files[report.nodeid.partition("::")[0]]
        cost.wall_s += getattr(report, _WALL, 0.0)
        cost.cpu_s += getattr(report, _CPU, 0.0)
        cost.ready_s += getattr(report, _READY, [])
        cost.num_tests += report.when == "call"

    def pytest_sessionfinish(self) -> None:
        """Take what was started, and keep all of it."""
        if self._recorder is None:
            return
        for start in self._recorder.starts():
            cost = self._files[start.file or "(the tests' own processes)"]
            cost.starts[start.kind] = cost.starts.get(start.kind, 0) + 1
            cost.started_cpu_s[start.kind] = cost.started_cpu_s.get(start.kind, 0.0) + start.cpu_s
        if (cache := getattr(self._config, "cache", None)) is not None:
            cache.set(_KEY, {**cache.get(_KEY, {}), **{file: asdict(cost) for file, cost in self._files.items()}})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._files) < 2:
            return
        terminalreporter.section(f"dearest {min(_NUM_SHOWN, len(self._files))} of {len(self._files)} files")
        for line in table_of(self._files, _CPU):
            terminalreporter.line(line)


def table_of(files: dict[str, Cost], order: str) -> list[str]:
    """The dearest files by a field of `Cost`, then what all of them started."""
    dearest = sorted(files.items(), key=lambda item: -getattr(item[1], order))[:_NUM_SHOWN]
    total = _total(list(files.values()))
    lines = ["    cpu s   wall s  tests"]
    for name, cost in [*dearest, ("all", total)]:
        lines.append(f"{cost.cpu_s:9.1f}{cost.wall_s:9.1f}{cost.num_tests:7d}  {name}")
    if total.starts:
        lines += ["", "    cpu s   starts"]
    for kind in (kind for kind in KINDS if kind in total.starts):
        lines.append(f"{total.started_cpu_s[kind]:9.1f}{total.starts[kind]:9d}  {kind}")
    if total.ready_s:
        mean, most = sum(total.ready_s) / len(total.ready_s), max(total.ready_s)
        lines.append(f"{len(total.ready_s)} services were ready after {mean:.1f} s on average, {most:.1f} s at most")
    return lines


def _total(costs: list[Cost]) -> Cost:
    starts: Counter[str] = Counter()
    started_cpu_s: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        starts.update(cost.starts)
        for kind, seconds in cost.started_cpu_s.items():
            started_cpu_s[kind] += seconds
    return Cost(
        sum(one.wall_s for one in costs),
        sum(one.cpu_s for one in costs),
        sum(one.num_tests for one in costs),
        [seconds for one in costs for seconds in one.ready_s],
        starts,
        started_cpu_s,
    )


def _clocks() -> tuple[float, float]:
    """Seconds: of the clock, and of processors by this process and by those of its children that have ended."""
    times = os.times()
    return time.monotonic(), times.user + times.system + times.children_user + times.children_system


def _main() -> None:
    if not _RECORD.exists():
        raise SystemExit("no run of the tests has left its figures; make test, make unit and make tiny do")
    files = {file: Cost(**fields) for file, fields in json.loads(_RECORD.read_text()).items()}
    print("\n".join(table_of({file: cost for file, cost in files.items() if cost.num_tests}, _WALL)))


if __name__ == "__main__":
    _main()
