"""The plan of a second start, with the numbers that the engine reported instead of those that it refused."""

from __future__ import annotations

from dataclasses import replace

from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.planner.plan import DevicePlan, Plan
from qserve.units import MIB, format_bytes

__all__ = ["retry_with"]

# Shorter than this nobody means who asked for more: better to stop and say so.
_SHORTEST = 512
# A report of free memory is some MiB old when the next start allocates.
_MARGIN_BYTES = 256 * MIB


def retry_with(plan: Plan, failure: Failure) -> Plan | None:
    """The plan to try once more, or None where the engine reported no number that would help.

    What changed stands in the new plan's last note. Only what the engine itself measured is used: nothing is guessed.
    """
    if failure.kind is FailureKind.KV_CACHE_TOO_SMALL and failure.max_model_len is not None:
        return _shorter(plan, failure.max_model_len)
    if failure.kind is FailureKind.TOO_MANY_SEQUENCES and failure.max_num_seqs is not None:
        return _fewer(plan, failure.max_num_seqs)
    if failure.needed_bytes is None or failure.available_bytes is None:
        return None
    if failure.kind is FailureKind.MEMORY_TAKEN:
        return _smaller_share(plan, failure.needed_bytes, failure.available_bytes)
    # Only the cache can give something back, and only once it is there: weights that don't fit stay too large.
    if failure.kind is FailureKind.OUT_OF_MEMORY and failure.during_cache:
        missing = failure.needed_bytes - failure.available_bytes + _MARGIN_BYTES
        return _smaller_cache(plan, plan.placement.kv_cache_memory_bytes - missing)
    return None


def _shorter(plan: Plan, longest: int) -> Plan | None:
    tokens = longest // 16 * 16
    if not _SHORTEST <= tokens < plan.workload.max_model_len:
        return None
    changed = replace(
        plan,
        workload=replace(plan.workload, max_model_len=tokens),
        max_concurrency=plan.kv_cache_tokens / tokens,
        engine_args=_with(plan.engine_args, "--max-model-len", tokens),
    )
    return _noted(changed, f"--max-model-len {tokens} in place of {plan.workload.max_model_len}")


def _fewer(plan: Plan, most: int) -> Plan | None:
    if not 1 <= most < plan.workload.max_num_seqs:
        return None
    changed = replace(
        plan,
        workload=replace(plan.workload, max_num_seqs=most),
        engine_args=_with(plan.engine_args, "--max-num-seqs", most),
    )
    return _noted(changed, f"--max-num-seqs {most} in place of {plan.workload.max_num_seqs}")


def _smaller_share(plan: Plan, requested_bytes: int, free_bytes: int) -> Plan | None:
    """The share of the card that is free, if the plan's own account fits into it; else with a smaller cache."""
    share, device = plan.placement.gpu_memory_utilization, plan.devices[0]
    if share is None:
        return None
    fits = int(share * (free_bytes - _MARGIN_BYTES) / requested_bytes * 1000) / 1000
    if fits <= 0:
        return None
    held = device.total_bytes - device.free_bytes - device.used_by_others_bytes
    missing = max(0, held + _MARGIN_BYTES - free_bytes)
    changed: Plan | None = plan
    if missing:
        changed = _smaller_cache(plan, plan.placement.kv_cache_memory_bytes - missing)
    if changed is None:
        return None
    changed = replace(
        changed,
        placement=replace(changed.placement, gpu_memory_utilization=fits),
        engine_args=_with(changed.engine_args, "--gpu-memory-utilization", fits),
    )
    return _noted(changed, f"--gpu-memory-utilization {fits} in place of {share}")


def _smaller_cache(plan: Plan, cache_bytes: int) -> Plan | None:
    """The plan with a smaller KV cache per device; None where one request of max_model_len would not fit any more."""
    before = plan.placement.kv_cache_memory_bytes
    if before <= 0 or cache_bytes <= 0:
        return None
    tokens = int(plan.kv_cache_tokens * cache_bytes / before)
    if tokens < plan.workload.max_model_len:
        return None
    changed = replace(
        plan,
        placement=replace(plan.placement, kv_cache_memory_bytes=cache_bytes),
        devices=tuple(_with_cache(device, before - cache_bytes) for device in plan.devices),
        kv_cache_tokens=tokens,
        max_concurrency=plan.max_concurrency * cache_bytes / before,
        engine_args=_with(plan.engine_args, "--kv-cache-memory-bytes", cache_bytes),
    )
    return _noted(changed, f"--kv-cache-memory-bytes {cache_bytes} ({format_bytes(cache_bytes)}) in place of {before}")


def _with_cache(device: DevicePlan, less_bytes: int) -> DevicePlan:
    return replace(device, kv_cache_bytes=device.kv_cache_bytes - less_bytes, free_bytes=device.free_bytes + less_bytes)


def _noted(plan: Plan, change: str) -> Plan:
    return replace(plan, notes=(*plan.notes, f"changed after vLLM refused the plan: {change}"))


def _with(args: tuple[str, ...], flag: str, value: int | float) -> tuple[str, ...]:
    """`args` with another value behind `flag`, which is added where it was not."""
    if flag not in args:
        return (*args, flag, str(value))
    place = args.index(flag) + 1
    return (*args[:place], str(value), *args[place + 1 :])
