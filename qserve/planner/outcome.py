"""Builds the `Plan` of a fitted candidate, or of one that does not fit, with what is missing."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.workload import Workload
from qserve.planner.candidate import Candidate
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes, kv_scale_bytes
from qserve.planner.plan import DevicePlan, ModelSummary, Placement, Plan
from qserve.planner.term import Term
from qserve.units import format_bytes, format_count

__all__ = ["KEPT_FREE", "accepted", "refused", "with_kept_free"]

KEPT_FREE = "kept free"
"""The term of a plan that does not fit for what the engine would not take, though the device has it."""


def accepted(
    candidate: Candidate,
    workload: Workload,
    placement: Placement,
    devices: tuple[DevicePlan, ...],
    kv_cache_tokens: int,
    max_concurrency: float,
) -> Plan:
    """The plan of `candidate` at `workload`."""
    cache_dtype = candidate.kv_cache_dtype
    token_bytes = kv_bytes_per_token(
        candidate.spec, kv_element_bytes(cache_dtype, candidate.dtype), scale_bytes=kv_scale_bytes(cache_dtype)
    )
    checkpoint = candidate.checkpoint
    return Plan(
        model=ModelSummary(
            checkpoint.id, candidate.spec.architecture, checkpoint.parameters, token_bytes, checkpoint.revision
        ),
        engine=candidate.engine,
        engine_version=candidate.engine_version,
        quant=candidate.quant,
        dtype=candidate.dtype,
        kv_cache_dtype=cache_dtype,
        workload=workload,
        placement=placement,
        devices=devices,
        kv_cache_tokens=kv_cache_tokens,
        max_concurrency=round(max_concurrency, 2),
        fits=True,
        cpu_activations=candidate.cpu_activations,
    )


def refused(
    plan: Plan, short_bytes: int, wanted_bytes: int, left_bytes: int, is_fixed: bool = False, states_bytes: int = 0
) -> Plan:
    """`plan`, which does not fit: a device needs `wanted_bytes` of KV cache for one sequence and has `left_bytes`.

    `short_bytes` is what the fullest device lacks, by the engine's own rule. `is_fixed`: the user set the cache to
    `left_bytes`. `states_bytes`: a block for every sequence, which hybrids need. The devices of the result hold what
    would be needed, so that the fullest one's `free_bytes` is `-short_bytes`; except where the cache that the user set
    is too small by itself: the devices are then as they would be with it, and `short_bytes` is what the cache lacks.
    """
    sequence = f"a KV cache of {format_count(plan.workload.max_model_len)} tokens"
    if states_bytes > max(wanted_bytes, left_bytes):
        sequence = f"states of {plan.workload.max_num_seqs} sequences (max_num_seqs)"
        wanted_bytes = states_bytes
    if is_fixed and left_bytes < wanted_bytes:
        why = (
            f"--kv-cache-memory-bytes {format_bytes(left_bytes)} is too little: {sequence} needs "
            f"{format_bytes(wanted_bytes)}"
        )
        return replace(plan, fits=False, why_not=why, short_bytes=wanted_bytes - left_bytes)
    devices = plan.devices if is_fixed else tuple(_with_cache(one, wanted_bytes, sequence) for one in plan.devices)
    fullest = min(devices, key=lambda one: one.free_bytes)
    short_bytes = max(short_bytes, -fullest.free_bytes)
    kept_free = short_bytes + fullest.free_bytes
    devices = tuple(with_kept_free(one, kept_free, plan.placement.gpu_memory_utilization) for one in devices)
    parts = [
        f"{name} {format_bytes(num_bytes)}"
        for name, num_bytes in (
            ("weights", fullest.weights_bytes),
            (sequence if not is_fixed else "--kv-cache-memory-bytes", fullest.kv_cache_bytes),
            ("activations", fullest.activations_bytes),
            ("other processes", fullest.used_by_others_bytes),
        )
        if num_bytes
    ]
    why = f"{format_bytes(short_bytes)} missing on {fullest.name}: {', '.join(parts)}"
    return replace(plan, fits=False, why_not=why, short_bytes=short_bytes, devices=devices)


def _with_cache(device: DevicePlan, wanted_bytes: int, sequence: str) -> DevicePlan:
    """With room for `sequence`, also where nothing was left for it."""
    more = wanted_bytes - device.kv_cache_bytes
    if more <= 0:
        return device
    cache = Term("KV cache", wanted_bytes, sequence, "config.json", wanted_bytes, wanted_bytes, "kv_cache", False)
    terms = (*(term for term in device.terms if term.column != "kv_cache"), cache)
    return replace(device, kv_cache_bytes=wanted_bytes, free_bytes=device.free_bytes - more, terms=terms)


def with_kept_free(device: DevicePlan, num_bytes: int, share: float | None = None) -> DevicePlan:
    """With the part of the device that the engine does not take."""
    if num_bytes <= 0:
        return device
    formula = "the part of the device that the engine leaves to others"
    formula += f": gpu_memory_utilization is {share:g}" if share else ""
    term = Term(KEPT_FREE, num_bytes, formula, "the engine's own rule", num_bytes, num_bytes, "runtime", False)
    return replace(
        device,
        runtime_bytes=device.runtime_bytes + num_bytes,
        free_bytes=device.free_bytes - num_bytes,
        terms=(*device.terms, term),
    )
