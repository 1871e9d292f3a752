"""A real shape with random weights: planned against measured memory, and speed against the device's limits."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from typing import Any

from bench.gpu_steps.machine import Machine, config_folder, config_of
from bench.gpu_steps.running import batching, random_prompts, wave
from bench.limits import Limits
from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.model.load import load
from qserve.planner import Plan

__all__ = ["measure_shape"]


def measure_shape(
    machine: Machine,
    limits: Limits | None,
    model: str,
    scheme: str,
    streams: Sequence[int],
    prompt_len: int,
    steps: int,
) -> dict[str, Any]:
    """Load `model` in `scheme` and run it; {"plan", "measured", "speed", …} or {"skipped": reason}."""
    plan = machine.plan(model, quant=scheme, max_model_len=4096, max_num_seqs=max(streams))
    row: dict[str, Any] = {"model": model, "scheme": scheme}
    if not plan.fits:
        return {**row, "ok": None, "skipped": plan.why_not}
    folder = config_folder(model)
    outside_before = machine.outside_bytes()
    before = machine.allocated_bytes()
    start = time.perf_counter()
    loaded = load(folder, plan, load_format="dummy")
    load_s = time.perf_counter() - start
    shutil.rmtree(folder)
    try:
        measured = asyncio.run(_run(machine, loaded.model, plan, limits, streams, prompt_len, steps, before))
    finally:
        weights, notes = loaded.weights_bytes, loaded.notes
        attention = loaded.attention
        del loaded
        machine.release()
    memory = measured["memory"]
    memory |= {"weights_by_tensors_bytes": weights, "outside_before_bytes": outside_before}
    memory["outside_bytes"] = max(0, memory["outside_bytes"] - plan.devices[0].used_by_others_bytes)
    if not machine.is_card:  # nobody counts what is allocated there
        memory |= {"weights_bytes": weights, "kv_cache_bytes": memory["kv_pool_bytes"]}
    device = plan.devices[0]
    planned = {
        "weights_bytes": device.weights_bytes,
        "kv_cache_bytes": device.kv_cache_bytes,
        "activations_bytes": device.activations_bytes,
        "runtime_bytes": device.runtime_bytes,
        "cuda_graphs_bytes": device.cuda_graphs_bytes,
    }
    row["ok"] = _is_as_planned(planned, memory) if machine.is_card else None
    products = [note for note in notes if note.startswith("products by")]
    return {
        **row,
        "products": products,
        "load_s": load_s,
        "attention": measured.pop("attention", attention),
        "plan": planned,
        **measured,
    }


def _is_as_planned(planned: dict[str, int], memory: dict[str, int]) -> bool:
    """Within 3 % on weights and 5 % on everything, CUDA's context included."""
    total = memory["peak_bytes"] + memory["outside_bytes"]
    weights_off = abs(planned["weights_bytes"] - memory["weights_bytes"]) / memory["weights_bytes"]
    return weights_off <= 0.03 and abs(sum(planned.values()) - total) / total <= 0.05


async def _run(
    machine: Machine, model: Any, plan: Plan, limits: Limits | None, streams: Sequence[int], prompt_len: int,
    steps: int, before: int,
) -> dict[str, Any]:  # fmt: skip
    after_load = machine.allocated_bytes()
    vocab = model.config.get_text_config().vocab_size
    async with batching(model, plan) as batcher:
        with_cache = machine.allocated_bytes()
        machine.reset_peak()
        # As many tokens in a step, and as many rows of logits, as the plan counts with.
        length = max(1, plan.workload.max_num_batched_tokens // max(streams))
        await wave(batcher, random_prompts(max(streams), length, vocab, seed=0), 4)
        peak = machine.peak_bytes()
        speed = [await _speed(batcher, plan, limits, count, prompt_len, steps, vocab) for count in streams]
        kernel, outside = batcher.attention, machine.outside_bytes()
    memory = {
        "weights_bytes": after_load - before,
        "kv_cache_bytes": with_cache - after_load,
        "kv_pool_bytes": batcher.kv_cache_bytes,
        "activations_bytes": peak - with_cache,
        "peak_bytes": peak,
        "outside_bytes": outside,
    }
    return {"attention": kernel, "memory": memory, "speed": speed, "batcher": type(batcher).__name__}


async def _speed(
    batcher: Any, plan: Plan, limits: Limits | None, streams: int, prompt_len: int, steps: int, vocab: int
) -> dict[str, Any]:
    """Tokens a second of prompts and of answers, and their share of what the device could do at best."""
    await wave(
        batcher, random_prompts(streams, prompt_len, vocab, seed=streams), 2
    )  # shapes are met for the first time
    taken = await wave(batcher, random_prompts(streams, prompt_len, vocab, seed=1000 + streams), steps + 1)
    decode = taken.rest_tokens / taken.rest_s
    prefill = streams * prompt_len / taken.first_s
    step_bytes, flop = work_of(plan, streams, prompt_len + steps // 2)
    return {
        "streams": streams,
        "prompt_tokens": prompt_len,
        "prefill_tokens_per_s": prefill,
        "prefill_share_of_limit": prefill / limits.prefill_tokens_per_s(flop) if limits else None,
        "decode_tokens_per_s": decode,
        "decode_share_of_limit": decode / limits.decode_tokens_per_s(streams, step_bytes) if limits else None,
        "ms_per_step": 1000 * streams / decode,
    }


def work_of(plan: Plan, streams: int, context_len: int) -> tuple[int, float]:
    """(bytes that a decoding step reads, operations of a prompt's token).

    A step reads every weight but the embedding table, of which it looks up rows (a tied one is read by the head), and
    the keys and values of all streams. A prompt's token takes two operations a weight of the layers; attention and the
    head, which sees the last token alone, are left out, so that the share is rather too low than too high.
    """
    config = config_of(plan.model.id)
    spec = ModelSpec.from_config(config, plan.model.id)
    tensors = tensors_of(spec)
    table = sum(tensor.nbytes for tensor in tensors if tensor.role == "embedding")
    head = 0 if spec.tie_word_embeddings else table
    looked_up = 0 if spec.tie_word_embeddings else table
    inside = sum(tensor.num_elements for tensor in tensors if tensor.role not in ("embedding", "lm_head"))
    weights = sum(device.weights_bytes for device in plan.devices)
    cache = streams * context_len * plan.model.kv_bytes_per_token
    assert weights >= looked_up + head
    return weights - looked_up + cache, 2.0 * inside
