"""A run fails when more than a few of its tests passed only when they were tried again."""

from __future__ import annotations

import pytest

__all__ = ["BoundedReruns"]


class BoundedReruns:
    """A plugin of pytest: the summary names the tests that were tried again, why, and the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.outcome) == "rerun":  # of pytest-rerunfailures, unknown to pytest's types
            self._tests[report.nodeid] = _reason(report)

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
        for name, reason in sorted(self._tests.items()):
            terminalreporter.line(name)
            terminalreporter.line(f"    {reason}")


def _reason(report: pytest.TestReport) -> str:
    """Where the first try failed, and the first line of why: a race is found by these."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr).strip().rpartition("\n")[2][:300]
    return f"{crash.path}:{crash.lineno}: {crash.message.splitlines()[0][:300]}"
