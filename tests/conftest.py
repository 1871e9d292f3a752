"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from qserve.worker.quick_imports import quick_imports
from qserve.worker.unused_packages import leave_out
from tests.collecting import rewritten_once
from tests.costs import Costs
from tests.reruns import BoundedReruns
from tests.shared import SharedFixtures

# What one test's run measured must not move another test's plan. A test of learning takes it away.
os.environ["QSERVE_NO_LEARN"] = "1"
# Threads of one product wait for each other by spinning: with several processes on few cores a fifth of all time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# transformers imports it where it is installed, 2 processor seconds in every process of a run, for what no test asks.
leave_out("sklearn")

# The same examples each time, and no deadline: a busy machine is no failure.
settings.register_profile("qserve", deadline=None, derandomize=True, database=None)
settings.load_profile("qserve")


# What one process runs in one go, since it shares a server or made checkpoints; elsewhere that is a file.
_TOGETHER = {
    "tests/browser/": "browser",
    "tests/tiny/vllm/": "vllm in 4 bit",
    "tests/tiny/vllm_served/": "vllm served",
    # Most ask one service; the others import lm-eval, and torch with it, into the process of its tests.
    **{
        f"tests/tiny/serving/test_{name}": "the served demo"
        for name in (
            "agents",
            "client_",
            "eval_command",
            "eval_golds",
            "lm_eval",
            "same_as_transformers",
            "compare_command",
            "engine_of_another_package",
            "eval_mixed",
            "eval_thinking",
            "preflight",
            "task_names",
            "rowless_tokens",
            "structure_costs",
        )
    },
    "tests/tiny/reward/test_on_vllm": "rewards on vllm",
    "tests/tiny/reward/": "rewards",
}
# Minutes each: begun last, they would leave the other process with nothing to do. Not all of vLLM at once: four engines
# that start on two cores wait for each other for minutes, and a start has a limit.
_LONG = (
    "tests/tiny/vllm_served/",
    "tests/browser/",
    "tests/tiny/training/test_methods",
    "tests/tiny/vllm/",
    "tests/tiny/reward/test_on_vllm.py",
    "tests/tiny/training/",
    "tests/tiny/serving/test_client_",
    "tests/tiny/reward/",
    "tests/tiny/cluster/",
    "tests/tiny/planner/",
    "tests/tiny/serving/",
)
_STARTS_VLLM = ("tests/tiny/vllm", "tests/tiny/reward/test_on_vllm.py")
_VLLM_START_LIMIT_S = 1200
# Each ends the service that its folder shares, so the other files of the folder come before it.
_ENDS_WHAT_IS_SHARED = ("tests/tiny/vllm_served/test_qserve_killed.py", "tests/tiny/vllm/test_killed.py")


# Real processes on a machine that others use, too: what fails is tried once more, and a run that needed
# more than a few such reruns fails.
_REAL_PROCESSES = ("tests/browser/", "tests/tiny/")
_MOST_RERUNS = 3


def pytest_configure(config: pytest.Config) -> None:
    """The summary names the dearest files; what files share ends with the last of them; reruns are bounded."""
    config.pluginmanager.register(Costs(config))
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist reports to the one that counts
        config.pluginmanager.register(BoundedReruns(_MOST_RERUNS))
    config.pluginmanager.register(SharedFixtures(_shared_by, ("tests/tiny/", "tests/browser")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What importing and collecting leave is no garbage: nobody walks these millions of objects again.

    Whatever collects garbage on purpose, each stage of a load and each model that is loaded, would, for a second.
    """
    with quick_imports(), rewritten_once():
        result = yield
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries look for leaks at the end
        return result


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest first, what ends a shared service last; a start of vLLM may take longer than a test."""
    for item in items:
        if item.nodeid.startswith(_REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.nodeid.startswith(_STARTS_VLLM):
            item.add_marker(pytest.mark.timeout(_VLLM_START_LIMIT_S))

    def rank(item: pytest.Item) -> tuple[int, bool]:
        long = next((rank for rank, start in enumerate(_LONG) if item.nodeid.startswith(start)), len(_LONG))
        return long, item.nodeid.startswith(_ENDS_WHAT_IS_SHARED)

    items.sort(key=rank)


def _shared_by(nodeid: str) -> str | None:
    return next((name for start, name in _TOGETHER.items() if nodeid.startswith(start)), None)


class _Together(LoadFileScheduling):
    """Of pytest-xdist: what one process runs in one go."""

    def _split_scope(self, nodeid: str) -> str:
        return _shared_by(nodeid) or super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Ours in place of `--dist loadfile`."""
    return _Together(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says loudly that nothing was tried in a browser: among hundreds of dots nobody sees a skipped test."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "tests/browser/" in report.nodeid]
    if skipped:
        terminalreporter.section(f"{len(skipped)} BROWSER TESTS DID NOT RUN", red=True, bold=True)
        for reason in sorted({str(report.longrepr[2]) for report in skipped}):
            terminalreporter.line(reason)
