"""Builds the `Plan` of a fitted setup, or of one that does not fit, with what is missing."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.workload import Workload
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes, kv_scale_bytes
from qserve.planner.plan import DevicePlan, ModelSummary, Placement, Plan
from qserve.planner.setup import Setup
from qserve.units import GIB, format_bytes

__all__ = ["accepted", "refused"]


def accepted(
    setup: Setup,
    workload: Workload,
    placement: Placement,
    devices: tuple[DevicePlan, ...],
    kv_cache_tokens: int,
    max_concurrency: float,
) -> Plan:
    """The plan of `setup` at `workload`."""
    cache_dtype = setup.kv_cache_dtype
    token_bytes = kv_bytes_per_token(
        setup.spec, kv_element_bytes(cache_dtype, setup.dtype), scale_bytes=kv_scale_bytes(cache_dtype)
    )
    checkpoint = setup.checkpoint
    return Plan(
        model=ModelSummary(checkpoint.id, setup.spec.architecture, checkpoint.parameters, token_bytes),
        engine=setup.engine,
        engine_version=setup.engine_version,
        quant=setup.quant,
        dtype=setup.dtype,
        kv_cache_dtype=cache_dtype,
        workload=workload,
        placement=placement,
        devices=devices,
        kv_cache_tokens=kv_cache_tokens,
        max_concurrency=round(max_concurrency, 2),
        fits=True,
        cpu_activations=setup.cpu_activations,
    )


def refused(
    plan: Plan, short_bytes: int, wanted_bytes: int, left_bytes: int, is_fixed: bool = False, states_bytes: int = 0
) -> Plan:
    """`plan`, which does not fit: `wanted_bytes` of KV cache for one sequence where `left_bytes` are left.

    `is_fixed`: the user set the cache to `left_bytes`. `states_bytes`: a block for every sequence, which hybrids need.
    """
    device = min(plan.devices, key=lambda item: item.free_bytes)
    held = f"{format_bytes(device.weights_bytes)} of weights, {format_bytes(device.activations_bytes)} of activations"
    need = f"one sequence of {plan.workload.max_model_len} tokens needs {format_bytes(wanted_bytes)}"
    if states_bytes > max(wanted_bytes, left_bytes):
        sequences = f"{plan.workload.max_num_seqs} sequences (max_num_seqs)"
        need = f"the states of {sequences} need a block each, {format_bytes(states_bytes)}"
        wanted_bytes = states_bytes
    if not is_fixed and left_bytes >= 0:
        why = f"{held} and the engine's own memory leave {format_bytes(left_bytes)} for the KV cache, and {need}"
    elif not is_fixed:
        over = f"{format_bytes(-left_bytes)} more than the engine may take"
        why = f"{held} and the engine's own memory are {over}, and {need}"
    elif left_bytes < wanted_bytes:
        why = f"--kv-cache-memory-bytes is {format_bytes(left_bytes)}, and {need}"
    else:
        why = f"--kv-cache-memory-bytes is {format_bytes(left_bytes)}, beside {held} and the engine's own memory"
    short = f"{short_bytes / GIB:.2f} GiB" if short_bytes >= GIB // 100 else format_bytes(short_bytes)
    why = f"{short} short on {device.name}: {why}"
    return replace(plan, fits=False, why_not=why, short_bytes=short_bytes)
