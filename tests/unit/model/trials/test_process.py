"""What the process that tries kernels tells, and when it ends so that another one goes on."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.model.trials import process
from qserve.model.trials.process import attempt, try_groups
from qserve.model.trials.verdicts import Trial, Verdict
from tests.unit.model.trials.faulty import trial


def told(groups: list[list[Trial]]) -> list[str]:
    lines: list[dict[str, Any]] = []
    try_groups(groups, "cpu", lines.append)
    return [key for line in lines for key in line if key != "verdict"]


def test_each_trial_is_told_before_and_after() -> None:
    assert told([[trial("is wrong"), trial("right"), trial("not wanted")], [trial("right")]]) == ["begins", "ends"] * 3


def test_a_card_that_does_not_recover_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an illegal address, when every call fails."""

    def synchronize(device: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")  # AcceleratorError is one

    monkeypatch.setattr(process, "_synchronize", synchronize)
    assert told([[trial("right"), trial("another")], [trial("right")]]) == ["begins", "ends"]
    found = attempt(trial("right"), "cpu")
    assert found == Verdict("RuntimeError: CUDA error: an illegal memory access was encountered")


def absent(cause: Exception | None) -> Exception:
    error = NotImplementedError("it is not here")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_lasting"),
    [
        (OSError("no network"), False),
        (MemoryError(), False),
        (KeyError(), True),
        (absent(None), True),
        (absent(OSError("no network")), False),
    ],
)
def test_what_the_next_start_may_find_otherwise_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_lasting: bool
) -> None:
    def raises(device: str) -> None:
        raise error

    monkeypatch.setattr(process, "_synchronize", raises)
    found = attempt(trial("right"), "cpu")
    assert found.is_lasting is is_lasting and not found.is_right
    assert found.is_absent is isinstance(error, NotImplementedError)
