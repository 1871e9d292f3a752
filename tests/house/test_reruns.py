"""A run of tests that passed only when they were tried again."""

from __future__ import annotations

import re

import pytest

pytest_plugins = ["pytester"]

_CONFTEST = """
from tests.reruns import BoundedReruns

def pytest_configure(config):
    config.pluginmanager.register(BoundedReruns(limit=3))
"""
_TESTS = """
import pytest

tried = set()

@pytest.mark.flaky(reruns=1)
@pytest.mark.parametrize("number", range(6))
def test_one(number):
    assert number >= {num_flaky} or number in tried or tried.add(number)
"""


@pytest.mark.parametrize(("num_flaky", "status"), [(0, 0), (3, 0), (4, 1)])
def test_more_than_a_few_fail_the_run(pytester: pytest.Pytester, num_flaky: int, status: int) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_TESTS.format(num_flaky=num_flaky))
    result = pytester.runpytest_inprocess("-p", "no:asyncio", "-p", "no:cacheprovider")
    assert result.parseoutcomes().get("rerun", 0) == num_flaky
    assert result.ret == status
    title = f"{num_flaky} tried again; the run fails above 3"
    assert (title in result.stdout.str()) is bool(num_flaky)
    reasons = [line for line in result.outlines if re.fullmatch(r"    \S+\.py:8: assert .+", line)]
    assert len(reasons) == num_flaky, "each is listed with where its first try failed, and why"


def test_what_failed_otherwise_stays_what_it_is(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(_CONFTEST)
    pytester.makepyfile(_TESTS.format(num_flaky=4))
    result = pytester.runpytest_inprocess("-p", "no:asyncio", "-p", "no:cacheprovider", "-k", "nothing")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
