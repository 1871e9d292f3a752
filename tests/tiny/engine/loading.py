"""Loading as `qserve up` does it, on the CPU, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

from qserve.detect import detect
from qserve.engines.transformers.worker.batching.make import make_batcher
from qserve.engines.transformers.worker.batching.scoring import PromptScorer
from qserve.engines.transformers.worker.engine import Engine
from qserve.hub import resolve
from qserve.model.load import LoadedModel, load
from qserve.model.load_cost import reset_peaks
from qserve.planner import Plan, PlanRequest, make_plan

__all__ = ["folder_of", "load_planned", "plan_of", "running"]


@cache
def plan_of(model: str, quant: str = "auto", dtype: str | None = None) -> Plan:
    """What the planner says for this machine's CPU."""
    request = PlanRequest(engine="transformers", quant=quant, dtype=dtype)
    return make_plan(resolve(model), replace(detect(), devices=()), request)


@cache
def load_planned(model: str, quant: str = "auto", dtype: str | None = None) -> LoadedModel:
    """The model as planned; loaded once for all tests."""
    return load(folder_of(model), plan_of(model, quant, dtype))


def folder_of(model: str) -> Path:
    """Where `model` lies on disk."""
    folder = resolve(model).folder
    assert folder is not None
    return folder


@asynccontextmanager
async def running(model: str, quant: str = "auto") -> AsyncIterator[Engine]:
    """An engine over `model`, loaded for this test alone and warmed up: ready to answer."""
    plan, loop = plan_of(model, quant), asyncio.get_running_loop()
    loaded = load(folder_of(model), plan)
    batcher = make_batcher(loaded.model, loop, plan)
    scorer = PromptScorer(loaded.model, batcher, loop, 1024)
    batcher.start(on_death=lambda error: None)
    scorer.start()
    engine = Engine(loaded, batcher, scorer, max_model_len=1024, max_num_seqs=4)
    reset_peaks()
    await engine.warm_up(512)
    try:
        yield engine
    finally:
        engine.stop()
