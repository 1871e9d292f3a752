"""A vLLM candidate, fitted: how many sequences, how large a step, how much of the card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from qserve.core.workload import Workload
from qserve.engines.vllm.plan.defaults import default_max_num_batched_tokens, default_max_num_seqs
from qserve.engines.vllm.plan.estimate import VllmEstimate
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.rank_shard import ram_table_bytes, stage_weights
from qserve.engines.vllm.plan.terms.runtime import host_processes_bytes
from qserve.engines.vllm.plan.trial import Trial, cuda_context
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.outcome import accepted, refused
from qserve.planner.plan import Placement, Plan
from qserve.units import format_bytes

__all__ = ["fit", "unsampled_seqs"]

_SEQS_LADDER = (256, 128, 64, 32, 16, 8, 4, 2, 1)
_BATCHED_LADDER = (2048, 1024, 512)
_MOST_UTILIZATION = 0.95
# Share of the card that stays free where the planner chooses: identical cold boots differ by that much.
_HEADROOM = 0.02
# On a CPU, of the RAM that is available.
_CPU_SHARE = 0.9
# Whether the safety margin and the room for sampled steps are kept, in the order in which they are given up.
_LESS_HELD_BACK = ((False, True), (True, False), (False, False))


def fit(candidate: Candidate, cache_tokens: int) -> Plan:
    """The first trial of the ladder that holds one sequence of the length that is needed."""
    request = candidate.request
    need = request.max_model_len or min(candidate.spec.max_position_embeddings, cache_tokens)
    estimate, fits = _first_that_fits(candidate, need)
    plan = _plan(estimate, need, fits)
    if fits:
        return _within_ram(candidate, plan)
    layers, layout = candidate.spec.num_hidden_layers // candidate.pipeline_parallel_size, estimate.trial.layout
    needs = layout.bytes_per_sequence(need), layout.least_bytes(estimate.trial.max_num_seqs)
    sequence, states = (nbytes * layers // candidate.spec.num_hidden_layers for nbytes in needs)
    left = estimate.cache_bytes
    short = max(sequence - left, states - left, -estimate.least_free_bytes, 1)
    return refused(plan, short, sequence, left, request.kv_cache_memory_bytes is not None, states)


def unsampled_seqs(candidate: Candidate, plan: Plan) -> int | None:
    """The next larger max_num_seqs, where only the room for sampled steps kept the planner from it; else None."""
    request, share = candidate.request, plan.placement.gpu_memory_utilization
    most = default_max_num_seqs(candidate.devices[0], VllmVersion.parse(candidate.engine_version))
    limits = plan.workload
    larger = [count for count in (most, *_SEQS_LADDER) if limits.max_num_seqs < count <= most]
    count = min(larger, default=0)
    if request.max_num_seqs or share is None or not count or count > limits.max_num_batched_tokens:
        return None
    steps = count, limits.max_num_batched_tokens, share, limits.max_model_len
    trial = Trial(candidate, stage_weights(candidate), *steps)
    held, free = (VllmEstimate(replace(trial, keeps_sampling=keeps)) for keeps in (True, False))
    is_free = held.least_free_bytes + held.slack_bytes < 0 <= free.least_free_bytes + free.slack_bytes
    return count if is_free else None


def _within_ram(candidate: Candidate, plan: Plan) -> Plan:
    """`plan`, refused where the machine is here and has too little RAM for what lies in it."""
    held = sum(plan.placement.offloaded_bytes.values())
    short = held - candidate.hardware.ram_for_models_bytes
    if short <= 0 or candidate.hardware.is_described:
        return plan
    why = (
        f"{format_bytes(short)} missing of the RAM: tables of n-grams {format_bytes(held)}, and "
        f"{format_bytes(candidate.hardware.ram_for_models_bytes)} available"
    )
    return replace(plan, fits=False, why_not=why, short_bytes=short)


def _plan(estimate: VllmEstimate, need: int, fits: bool) -> Plan:
    trial = estimate.trial
    candidate, request = trial.candidate, trial.candidate.request
    longest = min(candidate.spec.max_position_embeddings, estimate.max_tokens_of_one_sequence, trial.longest_model_len)
    max_model_len = request.max_model_len or (longest if fits else need)
    workload = Workload(
        max_model_len, trial.max_num_seqs, trial.max_num_batched_tokens, request.prompt_len or max_model_len
    )
    placement = Placement(
        tensor_parallel_size=candidate.tensor_parallel_size,
        pipeline_parallel_size=candidate.pipeline_parallel_size,
        gpu_memory_utilization=None if candidate.on_cpu else trial.gpu_memory_utilization,
        kv_cache_memory_bytes=max(0, estimate.cache_bytes),
        offloaded_bytes={"cpu": held} if (held := ram_table_bytes(candidate)) else {},
    )
    concurrency = estimate.max_concurrency(max_model_len) if max_model_len else 0.0
    tokens = estimate.logged_tokens(max_model_len)
    return accepted(candidate, workload, placement, estimate.devices(), tokens, concurrency)


def _first_that_fits(candidate: Candidate, need: int) -> tuple[VllmEstimate, bool]:
    """With what is held back for uncertain terms and sampled steps; where nothing fits so, with less of that."""
    ladders = list(_ladders(candidate, need))
    least = [VllmEstimate(trials[-1]) for trials in ladders]
    for estimate, trials in zip(least, ladders, strict=True):
        if _fits(estimate, need):
            return _largest(trials, need), True
    last = least[-1]
    may_fit = [_fits(VllmEstimate(_lighter(trials[-1], False, False)), need) for trials in ladders]
    for keeps_margin, keeps_sampling in _LESS_HELD_BACK:
        for estimate, trials, is_possible in zip(least, ladders, may_fit, strict=True):
            if not (keeps_margin or estimate.has_margin) or not (keeps_sampling or estimate.has_sampling):
                continue
            last = VllmEstimate(_lighter(trials[-1], keeps_margin, keeps_sampling))
            if is_possible and _fits(last, need):
                return _largest((_lighter(one, keeps_margin, keeps_sampling) for one in trials), need), True
    return last, False


def _lighter(trial: Trial, keeps_margin: bool, keeps_sampling: bool) -> Trial:
    return replace(trial, keeps_margin=keeps_margin, keeps_sampling=keeps_sampling)


def _largest(trials: Iterable[Trial], need: int) -> VllmEstimate:
    """The first of a ladder that fits. Its last one needs least: where that does not fit, none of it does."""
    return next(estimate for estimate in map(VllmEstimate, trials) if _fits(estimate, need))


def _fits(estimate: VllmEstimate, need: int) -> bool:
    """One sequence of `need` tokens has its blocks, hybrids have a state for every sequence, nothing is overdrawn."""
    if estimate.max_tokens_of_one_sequence < need:
        return False
    least = estimate.trial.layout.least_bytes(estimate.trial.max_num_seqs)
    if least > max(0, estimate.whole_model_cache_bytes):
        return False  # start-up fails: fewer blocks than sequences
    return estimate.least_free_bytes + estimate.slack_bytes >= 0


def _ladders(candidate: Candidate, need: int) -> Iterator[list[Trial]]:
    """The engine's own defaults first, then fewer sequences, then smaller steps; a list for each share of the card.

    A step holds a token of every sequence: vLLM refuses fewer tokens than sequences.
    """
    request, device, weights = candidate.request, candidate.devices[0], stage_weights(candidate)
    version = VllmVersion.parse(candidate.engine_version)
    seqs = request.max_num_seqs or default_max_num_seqs(device, version)
    batched = request.max_num_batched_tokens or default_max_num_batched_tokens(
        device, version, request.max_model_len or candidate.spec.max_position_embeddings
    )
    fixed = request.of(VllmOptions).gpu_memory_utilization
    seqs_ladder = [seqs] if request.max_num_seqs else [seqs, *(n for n in _SEQS_LADDER if n < seqs)]
    batched_ladder = (
        [batched] if request.max_num_batched_tokens else [batched, *(n for n in _BATCHED_LADDER if n < batched)]
    )
    least = request.max_num_seqs or 1
    steps = [tokens for tokens in batched_ladder if tokens >= least] or [least]
    for share in [fixed] if fixed else _utilizations(candidate, version):
        yield [
            Trial(candidate, weights, count, tokens, share, need)
            for tokens in steps
            for count in sorted({min(count, tokens) for count in seqs_ladder}, reverse=True)
        ]


def _utilizations(candidate: Candidate, version: VllmVersion) -> list[float]:
    """The release's default and then more of the card, neither above what others leave free."""
    if candidate.on_cpu:
        return [_CPU_SHARE * candidate.devices[0].available_bytes / candidate.devices[0].total_bytes]
    free = min(device.available_bytes / device.total_bytes for device in candidate.devices)
    # vLLM refuses to start when less than its share is free, and the CUDA context is part of what is taken.
    card = candidate.devices[0]
    beside = (cuda_context(candidate).num_bytes + host_processes_bytes(card)) / card.total_bytes
    most = _floor(min(_MOST_UTILIZATION, free - beside - _HEADROOM))
    return sorted({min(version.default_utilization, most), most})


def _floor(share: float) -> float:
    return max(0.01, int(share * 100) / 100)
