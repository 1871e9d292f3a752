"""Ends what files share after the last of them, and not with the process of the tests.

An idle service takes a hundredth of a core and half a GB, and what it took in all counts where it is ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from _pytest.fixtures import SubRequest

__all__ = ["SharedFixtures"]


class SharedFixtures:
    """A plugin of pytest, since a conftest.py hears nothing of fixtures whose scope is the session."""

    def __init__(self, group_of: Callable[[str], str | None], folders: tuple[str, ...]) -> None:
        """`group_of` names those that share, of a test's id; below `folders` are the fixtures that are meant."""
        self._group_of = group_of
        self._folders = folders
        self._alive: list[tuple[pytest.FixtureDef[object], SubRequest]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: SubRequest
    ) -> Generator[None, object, object]:
        if fixturedef.scope == "session" and fixturedef.baseid.startswith(self._folders):
            self._alive.append((fixturedef, request))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        result = yield
        group = self._group_of(item.nodeid)
        if group is not None and nextitem is not None and self._group_of(nextitem.nodeid) != group:
            while self._alive:  # the last first: a client before its server
                fixture, request = self._alive.pop()
                fixture.finish(request)
        return result
