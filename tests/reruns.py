"""A run fails when more than a few of its tests passed only when they were tried again."""

from __future__ import annotations

import pytest

__all__ = ["BoundedReruns"]


class BoundedReruns:
    """A plugin of pytest: the summary counts the tests that were tried again, and names the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.outcome) == "rerun":  # of pytest-rerunfailures, unknown to pytest's types
            self._tests.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if len(self._tests) > self._limit and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tests:
            return
        exceeds = len(self._tests) > self._limit
        title = f"{len(self._tests)} tried again; the run fails above {self._limit}"
        terminalreporter.section(title, red=exceeds, yellow=not exceeds, bold=True)
        for name in sorted(set(self._tests)):
            terminalreporter.line(name)
