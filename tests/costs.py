"""What each test file costs, in seconds and in processor seconds: the summary names the dearest ones.

Processes that a test started count once they have ended and were waited for: those of a service that several files
share count where the last of them stops it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import pytest

__all__ = ["Costs"]

_NUM_SHOWN = 20
_WALL, _CPU = "wall_s", "cpu_s"


@dataclass
class _Cost:
    wall_s: float = 0.0
    cpu_s: float = 0.0
    num_tests: int = 0


class Costs:
    """A plugin of pytest; in processes of pytest-xdist, too, whose reports carry what was measured there."""

    def __init__(self) -> None:
        self._files: defaultdict[str, _Cost] = defaultdict(_Cost)
        self._before = _clocks()

    def pytest_collection_finish(self) -> None:
        """What collecting cost is no file's."""
        self._before = _clocks()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        """Hang what passed since the last report on this one."""
        report = yield
        now = _clocks()
        report.wall_s, report.cpu_s = (after - before for after, before in zip(now, self._before, strict=True))
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Where the summary is made: in the process that was started by hand."""
        cost = self._files[report.nodeid.partition("::")[0]]
        cost.wall_s += getattr(report, _WALL, 0.0)
        cost.cpu_s += getattr(report, _CPU, 0.0)
        cost.num_tests += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self._files) < 2:
            return
        dearest = sorted(self._files.items(), key=lambda item: -item[1].cpu_s)[:_NUM_SHOWN]
        terminalreporter.section(f"dearest {len(dearest)} of {len(self._files)} files")
        terminalreporter.line("    cpu s   wall s  tests")
        for name, cost in [*dearest, ("all", self._total())]:
            terminalreporter.line(f"{cost.cpu_s:9.1f}{cost.wall_s:9.1f}{cost.num_tests:7d}  {name}")

    def _total(self) -> _Cost:
        costs = self._files.values()
        return _Cost(
            sum(one.wall_s for one in costs), sum(one.cpu_s for one in costs), sum(one.num_tests for one in costs)
        )


def _clocks() -> tuple[float, float]:
    """Seconds: of the clock, and of processors by this process and by those of its children that have ended."""
    times = os.times()
    return time.monotonic(), times.user + times.system + times.children_user + times.children_system
