"""What a worker's allocator may take of cards that others use too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from qserve.model.card_share import keep_to_plan
from qserve.planner.plan import DevicePlan
from tests.tiny.engine.loading import plan_of

CARD = DevicePlan(
    "Some Card",
    total_bytes=80,
    weights_bytes=20,
    kv_cache_bytes=10,
    activations_bytes=5,
    cuda_graphs_bytes=0,
    runtime_bytes=5,
    free_bytes=20,
    used_by_others_bytes=20,
)


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """By card, the share that torch was told."""
    told: dict[int, float] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, card: told.__setitem__(card, share)
    )
    return told


def test_what_others_hold_is_left_to_them(shares: dict[int, float]) -> None:
    alone, untouched = replace(CARD, used_by_others_bytes=0), replace(CARD, weights_bytes=0)
    plan = plan_of("demo", "bf16")
    keep_to_plan(replace(plan, on_cpu=False, devices=(alone, CARD, untouched)))
    assert shares == {1: (80 - 20 - 5) / 80}


def test_a_plan_for_the_cpu_touches_no_card(shares: dict[int, float]) -> None:
    keep_to_plan(replace(plan_of("demo", "bf16"), devices=(CARD,)))
    assert shares == {}
