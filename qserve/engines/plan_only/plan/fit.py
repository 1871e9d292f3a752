"""A candidate on cards that are planned for only, fitted: how much cache is left, and for which length."""

from __future__ import annotations

from qserve.core.workload import Workload
from qserve.engines.plan_only.plan.estimate import USABLE_SHARE, PlanOnlyEstimate
from qserve.engines.plan_only.plan.terms import PlanOnlySizes, terms_of
from qserve.planner.candidate import Candidate
from qserve.planner.outcome import accepted, refused
from qserve.planner.plan import DevicePlan, Placement, Plan

__all__ = ["fit"]


def fit(candidate: Candidate, cache_tokens: int) -> Plan:
    """With a cache of at least `cache_tokens`, or of the length or the bytes that the request fixes."""
    estimate, request = PlanOnlyEstimate(candidate), candidate.request
    positions = candidate.spec.max_position_embeddings
    need = request.max_model_len or min(positions, cache_tokens)
    fixed, room = request.kv_cache_memory_bytes, estimate.left_bytes + estimate.state_bytes
    have = room if fixed is None else fixed
    pool = max(0, have - estimate.state_bytes)
    tokens = pool // estimate.kv_token_bytes if estimate.kv_token_bytes else positions * estimate.max_num_seqs
    length = request.max_model_len or min(positions, max(need, tokens))
    if fixed is None:
        tokens = min(tokens, estimate.max_num_seqs * length)
    plan = _plan(estimate, tokens, length)
    wanted = need * estimate.kv_token_bytes + estimate.state_bytes
    if wanted <= have <= room:
        return plan
    return refused(plan, max(1, wanted - have, have - room), wanted, have, is_fixed=fixed is not None)


def _plan(estimate: PlanOnlyEstimate, tokens: int, length: int) -> Plan:
    candidate, fixed = estimate.candidate, estimate.candidate.request.kv_cache_memory_bytes
    cache = tokens * estimate.kv_token_bytes + estimate.state_bytes if fixed is None else fixed
    terms = terms_of(PlanOnlySizes(estimate, cache))
    devices = tuple(DevicePlan.of(card, terms) for card in candidate.devices)
    prompt = candidate.request.prompt_len or length
    workload = Workload(length, estimate.max_num_seqs, estimate.max_num_batched_tokens, prompt)
    placement = Placement(
        tensor_parallel_size=candidate.tensor_parallel_size,
        gpu_memory_utilization=None if candidate.devices[0].shares_ram else USABLE_SHARE,
        kv_cache_memory_bytes=cache,
    )
    return accepted(candidate, workload, placement, devices, tokens, tokens / length)
