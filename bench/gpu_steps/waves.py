"""Waves of a load that a plan does not decide: many streams at once, and tokens drawn instead of the likeliest."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import Any

from bench.gpu_steps.machine import Machine, config_folder
from bench.gpu_steps.running import GREEDY, SAMPLED, batching, random_prompts, wave
from qserve.model.load import load
from qserve.planner import Plan

__all__ = ["startup_row", "waves_row"]


def waves_row(machine: Machine, model: str, streams: int, sampled: bool, prompt_len: int, steps: int) -> dict[str, Any]:
    """Tokens a second of `streams` at once; `sampled` with temperature, top-p and top-k as chat models ask for them."""
    plan = machine.plan(model, quant=machine.scheme_16_bit, max_model_len=2 * prompt_len + steps, max_num_seqs=streams)
    if not plan.fits:
        return {"ok": None, "skipped": plan.why_not}
    folder = config_folder(model)
    loaded = load(folder, plan, load_format="dummy")
    shutil.rmtree(folder)
    try:
        return {"ok": True, **asyncio.run(_waves(loaded.model, plan, streams, sampled, prompt_len, steps))}
    finally:
        del loaded
        machine.release()


async def _waves(model: Any, plan: Plan, streams: int, sampled: bool, prompt_len: int, steps: int) -> dict[str, Any]:
    vocab, params = model.config.get_text_config().vocab_size, SAMPLED if sampled else GREEDY
    async with batching(model, plan) as batcher:
        await wave(batcher, random_prompts(streams, prompt_len, vocab, seed=1), 4, params)
        taken = await wave(batcher, random_prompts(streams, prompt_len, vocab, seed=2), steps + 1, params)
    return {
        "max_num_seqs": plan.workload.max_num_seqs,
        "first_tokens_s": taken.first_s,
        "decode_tokens_per_s": taken.rest_tokens / taken.rest_s,
        "ms_per_step": 1000 * streams * taken.rest_s / taken.rest_tokens,
    }


def startup_row(machine: Machine, model: str) -> dict[str, Any]:
    """How long the transformers engine takes from a loaded Python to its first token, weights made up on the spot."""
    plan = machine.plan(model, quant=machine.scheme_16_bit, max_model_len=1024, max_num_seqs=1)
    if not plan.fits:
        return {"ok": None, "skipped": plan.why_not}
    folder, start = config_folder(model), time.perf_counter()
    loaded = load(folder, plan, load_format="dummy")
    load_s = time.perf_counter() - start
    shutil.rmtree(folder)
    try:
        asyncio.run(_first_token(loaded.model, plan))
        return {"ok": True, "load_s": load_s, "first_token_s": time.perf_counter() - start}
    finally:
        del loaded
        machine.release()


async def _first_token(model: Any, plan: Plan) -> None:
    vocab = model.config.get_text_config().vocab_size
    async with batching(model, plan) as batcher:
        await wave(batcher, random_prompts(1, 16, vocab, seed=0), 1)
