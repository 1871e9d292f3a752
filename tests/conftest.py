"""What all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# What one test's run measured must not move another test's plan. A test of learning takes it away.
os.environ["QSERVE_NO_LEARN"] = "1"

# The same examples each time, and no deadline: a busy machine is no failure.
settings.register_profile("qserve", deadline=None, derandomize=True, database=None)
settings.load_profile("qserve")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that nothing was tried in a browser: among hundreds of dots nobody sees a skipped test."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/browser/" in report.nodeid]
    if skipped:
        terminalreporter.section(f"{len(skipped)} BROWSER TESTS DID NOT RUN", red=True, bold=True)
        for reason in sorted({str(report.longrepr[2]) for report in skipped}):
            terminalreporter.line(reason)
