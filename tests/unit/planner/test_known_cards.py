"""Every card of configs/gpus.toml plans a model: it fits, or changes are named with which it does."""

from __future__ import annotations

import pytest

from qserve.core.facts import load
from qserve.hub.resolve import resolve
from qserve.planner import make_plan
from qserve.planner.engine import plan_request
from qserve.units import GIB
from tests.unit.planner.test_make_plan import machine

SMALLEST_FOR_8B = 20 * GIB  # 15.3 GiB of weights in 16 bit, and what a start takes beside them


@pytest.mark.parametrize("key", load("gpus")["gpus"])
def test_a_known_card_is_planned(key: str) -> None:
    hardware = machine(key)
    plan = make_plan(resolve("Qwen/Qwen3-8B"), hardware, plan_request())
    assert plan.fits or plan.suggestions
    if hardware.devices[0].total_bytes > SMALLEST_FOR_8B:
        assert plan.fits
