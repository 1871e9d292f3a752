"""A candidate on cards that are planned for only, fitted: how much cache is left, and for which length."""

from __future__ import annotations

from qserve.core.plan_only import backend_of
from qserve.core.workload import Workload
from qserve.engines.plan_only.plan.estimate import USABLE_SHARE, PlanOnlyEstimate
from qserve.engines.plan_only.plan.terms import PlanOnlySizes, terms_of
from qserve.planner.candidate import Candidate
from qserve.planner.outcome import accepted, refused
from qserve.planner.plan import DevicePlan, Placement, Plan

__all__ = ["fit"]


def fit(candidate: Candidate, cache_tokens: int) -> Plan:
    """With a cache of at least `cache_tokens`, or of the length that the request fixes."""
    estimate, request = PlanOnlyEstimate(candidate), candidate.request
    positions = candidate.spec.max_position_embeddings
    need = request.max_model_len or min(positions, cache_tokens)
    left, is_fixed = estimate.left_bytes, request.kv_cache_memory_bytes is not None
    pool = min(left, request.kv_cache_memory_bytes) if request.kv_cache_memory_bytes is not None else left
    tokens = max(0, pool) // estimate.kv_token_bytes if estimate.kv_token_bytes else positions * estimate.max_num_seqs
    length = request.max_model_len or min(positions, max(need, tokens))
    tokens = min(tokens, estimate.max_num_seqs * length)
    plan = _plan(estimate, tokens, length)
    wanted = need * estimate.kv_token_bytes + estimate.state_bytes
    if tokens >= need and left >= 0:
        return plan
    have = (pool if is_fixed else left) + estimate.state_bytes
    return refused(plan, max(1, wanted - have), wanted, have, is_fixed=is_fixed)


def _plan(estimate: PlanOnlyEstimate, tokens: int, length: int) -> Plan:
    candidate = estimate.candidate
    cache = tokens * estimate.kv_token_bytes + estimate.state_bytes
    terms = terms_of(PlanOnlySizes(estimate, cache))
    devices = tuple(DevicePlan.of(card, terms) for card in candidate.devices)
    prompt = candidate.request.prompt_len or length
    workload = Workload(length, estimate.max_num_seqs, estimate.max_num_batched_tokens, prompt)
    placement = Placement(
        tensor_parallel_size=candidate.tensor_parallel_size,
        gpu_memory_utilization=None if backend_of(candidate.devices[0].kind).shares_ram else USABLE_SHARE,
        kv_cache_memory_bytes=cache,
    )
    return accepted(candidate, workload, placement, devices, tokens, tokens / length)
