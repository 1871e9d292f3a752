"""A transformers candidate, fitted: the KV pool, the length, and which module lies where."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.workload import Workload
from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS, plan_page_tokens, whole_pages
from qserve.engines.transformers.plan.device_map import PartialDeviceMap
from qserve.engines.transformers.plan.estimate import TransformersEstimate
from qserve.engines.transformers.plan.terms import DeviceShare, terms_of
from qserve.planner.candidate import Candidate
from qserve.planner.outcome import accepted, refused, with_kept_free
from qserve.planner.plan import DeviceMap, DevicePlan, Placement, Plan
from qserve.units import GIB, format_bytes

__all__ = ["fit"]

_CPU_MAX_NUM_SEQS = 64
# (cards from this memory on, sequences, tokens of a step), smallest last: what a card holds grows with it, and so does
# what it computes at once.
_CUDA_DEFAULTS = ((70 * GIB, 64, 4096), (40 * GIB, 32, 4096), (0, 16, 2048))
_CPU_BATCHED_TOKENS = 1024
# Tokens of pool per sequence where memory allows; longer conversations share.
_CPU_POOL_TOKENS_PER_SEQ = 1024
_CUDA_POOL_TOKENS_PER_SEQ = 4096
_SCORER_LENGTH = 8192
# Of what is left, a service on a CPU takes a part and leaves the rest to others.
_CPU_POOL_SHARE = 0.3
_CUDA_SHARE = 0.92
_CPU_SHARE = 0.9


def fit(candidate: Candidate, cache_tokens: int) -> Plan:
    """A language model with a KV pool of at least `cache_tokens` (or the fixed length), or a scorer without one."""
    if candidate.spec.head.kind == "score":
        return _scorer(candidate)
    estimate = _estimate(candidate)
    plan = _fitted(estimate, cache_tokens)
    if not estimate.num_graphs or (plan.fits and isinstance(plan.placement.device_map, str)):
        return plan
    # Over several places no step is captured; and where there is no room for graphs, one card serves without them.
    return _fitted(replace(estimate, captures=False), cache_tokens)


def _fitted(estimate: TransformersEstimate, cache_tokens: int) -> Plan:
    candidate, request = estimate.candidate, estimate.candidate.request
    need = request.max_model_len or min(candidate.spec.max_position_embeddings, cache_tokens)
    activations = estimate.activations_bytes(request.prompt_len or need, need)
    left = estimate.left_bytes(activations, _CPU_SHARE if candidate.on_cpu else _CUDA_SHARE) - estimate.weights_bytes
    pool, max_model_len = _pool(estimate, left, need)
    pool, placed = _placed(estimate, pool, need, activations)
    if request.max_model_len is None:
        max_model_len = min(max_model_len, max(need, estimate.tokens_of(pool)))
    plan = _plan(estimate, placed, pool, activations, max_model_len)
    if placed is not None and estimate.tokens_of(pool) >= max_model_len:
        return plan
    by_hand = estimate.overdrawn(pool, activations)
    if by_hand is not None and by_hand[1]:
        plan = replace(plan, devices=_devices(estimate, by_hand[0], pool, activations))
        return _refused_map(plan, by_hand[1], _places(candidate))
    wanted, count = estimate.pool_bytes(need), len(candidate.devices)
    is_fixed = request.kv_cache_memory_bytes is not None
    short = max(1, wanted - left, pool - left)
    plan = refused(plan, short // count, wanted // count, (pool if is_fixed else left) // count, is_fixed=is_fixed)
    if estimate.options.offload != "none" and estimate.why_no_offload:
        plan = replace(plan, why_not=f"{plan.why_not}; {estimate.why_no_offload}")
    return plan


def _placed(
    estimate: TransformersEstimate, pool: int, need: int, activations: tuple[int, ...]
) -> tuple[int, PartialDeviceMap | None]:
    """The largest pool of `need` tokens to `pool` bytes with which all modules find a place, and where they lie.

    Layers are whole and lie in order, so what is left over on several cards can't all be used.
    """
    placed, least = estimate.placed(pool, activations), estimate.pool_bytes(_whole(estimate, need))
    if placed is not None or pool <= least or estimate.candidate.request.kv_cache_memory_bytes is not None:
        return pool, placed
    placed = estimate.placed(least, activations)
    low, high = _whole(estimate, need) // PAGE_TOKENS, estimate.tokens_of(pool) // PAGE_TOKENS
    while placed is not None and high - low > max(1, low // 32):
        pages = (low + high) // 2
        tried = estimate.placed(estimate.pool_bytes(pages * PAGE_TOKENS), activations)
        if tried is None:
            high = pages
        else:
            low, placed, least = pages, tried, estimate.pool_bytes(pages * PAGE_TOKENS)
    return least, placed


def _refused_map(plan: Plan, over: dict[int | str, int], places: list[int | str]) -> Plan:
    """A map of the user's that takes more of a place than there is."""
    lacks = ", ".join(f"{format_bytes(lack)} too much on {_named(place)}" for place, lack in over.items())
    devices = tuple(
        with_kept_free(device, over[place] + device.free_bytes) if place in over else device
        for place, device in zip(places, plan.devices, strict=True)
    )
    why = f"the device map puts {lacks}; move layers elsewhere, or leave --device-map out"
    return replace(plan, fits=False, why_not=why, short_bytes=max(over.values()), devices=devices)


def _estimate(candidate: Candidate) -> TransformersEstimate:
    request = candidate.request
    default_seqs, default_batched = _defaults(candidate)
    estimate = TransformersEstimate(candidate, default_seqs, request.max_num_batched_tokens or default_batched)
    seqs = request.max_num_seqs or (default_seqs if estimate.has_pool else 1)
    return TransformersEstimate(candidate, seqs, estimate.max_num_batched_tokens)


def _defaults(candidate: Candidate) -> tuple[int, int]:
    """Sequences and tokens of a step where nobody named any; of several cards the smallest one decides."""
    if candidate.on_cpu:
        return _CPU_MAX_NUM_SEQS, _CPU_BATCHED_TOKENS
    least = min(device.total_bytes for device in candidate.devices)
    return next((seqs, tokens) for total, seqs, tokens in _CUDA_DEFAULTS if least >= total)


def _pool(estimate: TransformersEstimate, left: int, need: int) -> tuple[int, int]:
    """(KV pool, max_model_len): sized for the workload, bounded by a share of what is left, at least one sequence."""
    candidate, request = estimate.candidate, estimate.candidate.request
    positions = candidate.spec.max_position_embeddings
    if request.kv_cache_memory_bytes is not None:
        pool = request.kv_cache_memory_bytes
        return pool, request.max_model_len or max(1, min(positions, estimate.tokens_of(pool)))
    if not estimate.has_pool:  # one `generate` call: exactly the sequences that were asked for
        return estimate.pool_bytes(need * estimate.max_num_seqs), need
    affordable = estimate.tokens_of(int(max(0, left) * (_CPU_POOL_SHARE if candidate.on_cpu else 1.0)))
    affordable -= affordable % PAGE_TOKENS
    max_model_len = request.max_model_len or max(need, min(positions, affordable))
    per_sequence = _CPU_POOL_TOKENS_PER_SEQ if candidate.on_cpu else _CUDA_POOL_TOKENS_PER_SEQ
    wanted = max(max_model_len, estimate.max_num_seqs * min(max_model_len, per_sequence))
    least = _whole(estimate, max_model_len)
    return estimate.pool_bytes(max(least, min(wanted, affordable))), max_model_len


def _whole(estimate: TransformersEstimate, num_tokens: int) -> int:
    """A sequence of the whole length needs whole pages."""
    if not estimate.has_pool:
        return num_tokens
    return whole_pages(num_tokens, plan_page_tokens(on_cpu=estimate.candidate.on_cpu))


def _plan(
    estimate: TransformersEstimate,
    placed: PartialDeviceMap | None,
    pool: int,
    activations: tuple[int, ...],
    max_model_len: int,
) -> Plan:
    candidate = estimate.candidate
    prompt_len = candidate.request.prompt_len or max_model_len
    workload = Workload(max_model_len, estimate.max_num_seqs, estimate.max_num_batched_tokens, prompt_len)
    offloaded: dict[str, int] = {}
    if placed is not None:
        offloaded = {str(name): placed.weights_on(name) for name in placed.names if placed.is_offload(name)}
    placement = Placement(
        device_map=_device_map(placed),
        kv_cache_memory_bytes=pool,
        offloaded_bytes=offloaded,
        head_copy_bytes=estimate.shortlist_bytes,
    )
    tokens = estimate.tokens_of(pool)
    devices = _devices(estimate, placed, pool, activations)
    return accepted(candidate, workload, placement, devices, tokens, tokens / max_model_len)


def _devices(
    estimate: TransformersEstimate, placed: PartialDeviceMap | None, pool: int, activations: tuple[int, ...]
) -> tuple[DevicePlan, ...]:
    """Every card (or the CPU); where nothing fits, weights and cache in equal parts.

    A card that gets nothing is not touched: no context, no activations.
    """
    cards = estimate.candidate.devices
    count = len(cards)
    names = _places(estimate.candidate)
    held: list[tuple[int, int, int, int] | None]
    if placed is None:
        held = [(estimate.weights_bytes // count, pool // count, peak, 0) for peak in activations]
    elif len(placed.names) == 1:  # exact: what is rounded up layer by layer is not
        whole = (estimate.weights_bytes, pool)
        held = [
            (*whole, peak, 0) if placed.names == [name] else None for name, peak in zip(names, activations, strict=True)
        ]
    else:
        held = [
            (
                placed.weights_on(name) + placed.buffers_on(name),
                placed.cache_on(name),
                peak + placed.passing_through(name),
                placed.buffers_on(name),
            )
            if name in placed.names
            else None
            for name, peak in zip(names, activations, strict=True)
        ]
    return tuple(
        DevicePlan.of(card, terms_of(DeviceShare(estimate, *share)) if share else ())
        for card, share in zip(cards, held, strict=True)
    )


def _places(candidate: Candidate) -> list[int | str]:
    """What a device map calls the devices of the candidate."""
    return ["cpu"] if candidate.on_cpu else list(range(len(candidate.devices)))


def _named(place: int | str) -> str:
    return f"card {place}" if isinstance(place, int) else {"cpu": "RAM"}.get(place, place)


def _device_map(placed: PartialDeviceMap | None) -> DeviceMap | str | None:
    if placed is None:
        return None
    if len(placed.names) > 1:
        return placed.device_map
    only = next(iter(placed.names))
    return f"cuda:{only}" if isinstance(only, int) else only


def _scorer(candidate: Candidate) -> Plan:
    """A reward model scores packed batches in one pass: weights and activations, no cache."""
    request = candidate.request
    length = request.max_model_len or min(candidate.spec.max_position_embeddings, _SCORER_LENGTH)
    batched = request.max_num_batched_tokens or max(length, _CPU_BATCHED_TOKENS)
    estimate = TransformersEstimate(candidate, request.max_num_seqs or _CPU_MAX_NUM_SEQS, batched)
    activations = estimate.activations_bytes(length, length)[0]
    share = DeviceShare(estimate, estimate.weights_bytes, 0, activations)
    device = DevicePlan.of(candidate.devices[0], terms_of(share))
    workload = Workload(length, estimate.max_num_seqs, batched, length)
    placement = Placement(device_map="cpu" if candidate.on_cpu else "cuda:0")
    plan = accepted(candidate, workload, placement, (device,), 0, batched / length)
    return plan if device.free_bytes >= 0 else refused(plan, -device.free_bytes, 0, device.free_bytes)
