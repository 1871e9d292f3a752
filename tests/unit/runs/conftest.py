"""A machine with other things to do must not look like a disk that does not answer."""

from __future__ import annotations

import pytest

from qserve.runs import writer


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends waits as long as it takes."""
    monkeypatch.setattr(writer, "_CLOSE_S", 120.0)
