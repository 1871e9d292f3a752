"""The rule `code` and honest programs: the ways in which data sets write tests, right and wrong answers to each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qserve.reward.rules import make_rule
from tests.unit.reward.code.programs import needs_sandbox, read_programs

STYLES = read_programs("honest")


@pytest.fixture(scope="module")
def code() -> Callable[[str, str], float]:
    needs_sandbox()
    return make_rule("code", {"timeout_s": 4}, "here").check()


@pytest.mark.parametrize("style", STYLES)
def test_an_honest_program_gets_what_it_earns(style: str, code: Callable[[str, str], float]) -> None:
    parts = STYLES[style]
    assert code(parts["program"], parts["passes"]) == 1
    assert code(parts["program"], parts["fails"]) == 0
