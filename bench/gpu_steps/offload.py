"""Two devices, faked by --max-memory: a card that may hold a part of the layers, and RAM (or the disk) for the rest."""

from __future__ import annotations

import asyncio
import shutil
import time
from typing import Any

import torch

from bench.gpu_steps.machine import Machine, config_folder, config_of
from bench.gpu_steps.planned import PlannedSpeed
from bench.gpu_steps.running import batching, random_prompts, wave
from qserve.core.model_spec import ModelSpec
from qserve.demo import chat_model_path
from qserve.hub import resolve
from qserve.model.load import load
from qserve.planner import Plan, make_plan, plan_request

__all__ = ["offloaded_speed_row", "offloaded_tokens_row", "two_cards_row"]


def offloaded_tokens_row(machine: Machine) -> dict[str, Any]:
    """The demo model in float32, whole and with layers offloaded: every token must be the same."""
    whole = _demo_plan(machine)
    device = whole.devices[0]
    capped = device.runtime_bytes + device.activations_bytes + device.kv_cache_bytes + device.weights_bytes * 3 // 4
    limit = f"0={capped},cpu=8GiB" if machine.is_card else f"cpu={capped}"
    # Otherwise a smaller pool would make room for all layers.
    fixed = {"kv_cache_memory_bytes": device.kv_cache_bytes}
    split = _demo_plan(machine, max_memory=limit, offload="cpu" if machine.is_card else "disk", **fixed)
    if not split.fits or not isinstance(split.placement.device_map, dict):
        return {"ok": None, "skipped": split.why_not or "everything fits below the limit"}
    places = sorted({str(place) for place in split.placement.device_map.values()})
    return {"places": places, **_same_tokens(machine, whole, split)}


def two_cards_row(machine: Machine) -> dict[str, Any]:
    """The demo model over two real cards, each layer's cache on its own card."""
    if not machine.is_card or torch.cuda.device_count() < 2:
        return {"ok": None, "skipped": "needs two cards"}
    whole, split = _demo_plan(machine), _demo_plan(machine, num_cards=2, device_map="balanced")
    if not split.fits:
        return {"ok": None, "skipped": split.why_not}
    return {"places": ["0", "1"], **_same_tokens(machine, whole, split)}


def offloaded_speed_row(machine: Machine, model: str, limit: str | None = None) -> dict[str, Any]:
    """A larger shape with 40 % of its weights in RAM: what a decoding step moves, and how fast."""
    whole = machine.plan(model, quant="bf16", max_model_len=1024, max_num_seqs=4)
    device = whole.devices[0]
    held = device.runtime_bytes + device.activations_bytes + device.kv_cache_bytes + device.weights_bytes * 6 // 10
    limit = limit or (f"0={held}" if machine.is_card else f"cpu={held}")
    plan = machine.plan(
        model,
        quant="bf16",
        max_model_len=1024,
        max_num_seqs=4,
        max_memory=limit,
        offload="cpu" if machine.is_card else "disk",
        kv_cache_memory_bytes=device.kv_cache_bytes,
    )
    if not plan.fits or not plan.placement.offloaded_bytes:
        return {"model": model, "ok": None, "skipped": plan.why_not or "everything fits below the limit"}
    folder = config_folder(model)
    start = time.perf_counter()
    loaded = load(folder, plan, load_format="dummy")
    load_s = time.perf_counter() - start
    shutil.rmtree(folder)
    allocated = machine.allocated_bytes()
    notes = list(loaded.notes)
    planned = PlannedSpeed(plan, ModelSpec.from_config(config_of(model), model), machine.hardware())
    try:
        steps, seconds = asyncio.run(_decode(loaded.model, plan, config_of(model)["vocab_size"]))
    finally:
        del loaded
        machine.release()
    moved = sum(plan.placement.offloaded_bytes.values())
    return {
        "model": model,
        "load_s": load_s,
        "planned_on_device_bytes": plan.devices[0].weights_bytes,
        "measured_on_device_bytes": allocated,
        "offloaded_bytes": moved,
        "pinned": any(", pinned" in note for note in notes),
        "notes": notes,
        "planned_s_per_step": planned.step_ms(1, 18) / 1000,
        "s_per_step": seconds / steps,
        "moved_bytes_per_s": moved * steps / seconds,
    }


async def _decode(model: Any, plan: Plan, vocab_size: int) -> tuple[int, float]:
    """(decoding steps, their seconds) at one stream."""
    async with batching(model, plan) as batcher:
        await wave(batcher, random_prompts(1, 16, vocab_size, seed=1), 2)
        taken = await wave(batcher, random_prompts(1, 16, vocab_size, seed=2), 5)
    return taken.rest_tokens, taken.rest_s


def _demo_plan(machine: Machine, num_cards: int = 1, **fixed: Any) -> Plan:
    request = plan_request(engine="transformers", dtype="float32", max_model_len=256, max_num_seqs=4, **fixed)
    return make_plan(resolve("demo"), machine.hardware(num_cards), request)


def _same_tokens(machine: Machine, first: Plan, second: Plan) -> dict[str, Any]:
    wanted, got = (asyncio.run(_demo_tokens(machine, plan)) for plan in (first, second))
    return {"ok": wanted == got, "streams": len(wanted), "tokens": sum(map(len, wanted))}


async def _demo_tokens(machine: Machine, plan: Plan) -> list[list[int]]:
    loaded = load(chat_model_path(), plan)
    async with batching(loaded.model, plan) as batcher:
        taken = await wave(batcher, random_prompts(4, 48, 1000, seed=7), 24)
    del loaded
    machine.release()
    return taken.tokens
