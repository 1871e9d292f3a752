"""What the plan says of weights and cache against what the engine holds after loading the demo."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from qserve.detect import detect
from qserve.engines.transformers.worker.batching.make import make_batcher
from qserve.hub import resolve
from qserve.model.load import load
from qserve.planner import PlanRequest, make_plan


async def test_weights_and_cache_are_as_planned() -> None:
    checkpoint = resolve("demo")
    assert checkpoint.folder is not None
    plan = make_plan(checkpoint, replace(detect(), devices=()), PlanRequest())
    assert plan.fits
    loaded = load(checkpoint.folder, plan)
    batcher = make_batcher(loaded.model, asyncio.get_running_loop(), plan)
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.02)
    assert batcher.kv_cache_tokens == pytest.approx(plan.kv_cache_tokens, rel=0.02)
