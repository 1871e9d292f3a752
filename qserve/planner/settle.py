"""One candidate, counted: the workload that it can carry, as a `Plan` that fits or says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qserve.core.workload import Workload
from qserve.planner.account_transformers import TransformersAccount
from qserve.planner.account_vllm import VllmAccount, cuda_context, stage_weights
from qserve.planner.memory import vllm
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes
from qserve.planner.plan import DeviceMap, DevicePlan, ModelSummary, Placement, Plan
from qserve.planner.setup import Setup
from qserve.planner.versions import VllmVersion
from qserve.units import GIB, format_bytes

__all__ = ["ROOM_TOKENS", "settle"]

# Tokens of KV cache that a plan should leave, best first: a service worth starting holds four conversations of 4096;
# below the last a chat is no chat.
ROOM_TOKENS = (16384, 8192, 4096, 2048)
_SEQS_LADDER = (256, 128, 64, 32, 16, 8, 4, 2, 1)
_BATCHED_LADDER = (2048, 1024, 512)
_MOST_UTILIZATION = 0.95
# Share of the card that stays free where the planner chooses: identical cold boots differ by that much.
_HEADROOM = 0.02

_CPU_MAX_NUM_SEQS = 64
_CPU_BATCHED_TOKENS = 1024
_CUDA_BATCHED_TOKENS = 2048
# Tokens of pool per sequence where memory allows; longer conversations share.
_CPU_POOL_TOKENS_PER_SEQ = 1024
_CUDA_POOL_TOKENS_PER_SEQ = 4096
_SCORER_LENGTH = 8192
# A service on a CPU leaves most of what is free to others; one on a card takes nearly all.
_CPU_POOL_SHARE = 0.3
_CUDA_SHARE = 0.92
_CPU_SHARE = 0.9


def settle(setup: Setup, room_tokens: int) -> Plan:
    """The best workload of a candidate that leaves `room_tokens` of KV cache; `fits` is False where none does.

    What the request fixes is not touched. A length that the request fixes replaces `room_tokens`.
    """
    return _settle_vllm(setup, room_tokens) if setup.engine == "vllm" else _settle_transformers(setup, room_tokens)


def _settle_vllm(setup: Setup, room_tokens: int) -> Plan:
    request = setup.request
    need = request.max_model_len or min(setup.spec.max_position_embeddings, room_tokens)
    accounts = list(_vllm_accounts(setup, need))
    fitting = (account for account in accounts if _vllm_fits(account, need))
    account = next(fitting, accounts[-1])
    fits = _vllm_fits(account, need)
    possible = account.max_tokens_of_one_sequence
    max_model_len = request.max_model_len or (min(setup.spec.max_position_embeddings, possible) if fits else need)
    devices = account.devices()
    cache = max(0, account.cache_bytes)
    workload = Workload(
        max_model_len, account.max_num_seqs, account.max_num_batched_tokens, request.prompt_len or max_model_len
    )
    placement = Placement(
        tensor_parallel_size=setup.tensor_parallel_size,
        pipeline_parallel_size=setup.pipeline_parallel_size,
        gpu_memory_utilization=None if setup.on_cpu else account.gpu_memory_utilization,
        kv_cache_memory_bytes=cache,
    )
    concurrency = account.max_concurrency(max_model_len) if max_model_len else 0.0
    plan = _plan(setup, workload, placement, devices, account.logged_tokens(max_model_len), concurrency)
    if fits:
        return plan
    layers = setup.spec.num_hidden_layers // setup.pipeline_parallel_size
    wanted = account.layout.bytes_per_sequence(need) * layers // setup.spec.num_hidden_layers
    short = max(wanted - account.cache_bytes, -min(device.free_bytes for device in devices), 1)
    return _refused(plan, short, wanted, account.cache_bytes)


def _vllm_fits(account: VllmAccount, need: int) -> bool:
    """One sequence of `need` tokens has its blocks, hybrids have a state for every sequence, nothing is overdrawn."""
    if account.max_tokens_of_one_sequence < need:
        return False
    layout = account.layout
    if layout.state_blocks and account.max_num_seqs > layout.num_blocks(account.whole_model_cache_bytes):
        return False  # start-up fails: fewer blocks than sequences
    # What no log counts exactly (context, graphs) refuses a plan only where its low estimate is too much as well.
    return all(device.free_bytes + account.slack_bytes >= 0 for device in account.devices())


def _vllm_accounts(setup: Setup, need: int) -> Iterator[VllmAccount]:
    """The engine's own defaults first, then fewer sequences, smaller steps, a larger share of the card."""
    request, device, weights = setup.request, setup.devices[0], stage_weights(setup)
    version = VllmVersion.parse(setup.engine_version)
    seqs = request.max_num_seqs or vllm.default_max_num_seqs(device, version)
    batched = request.max_num_batched_tokens or vllm.default_max_num_batched_tokens(
        device, version, request.max_model_len or setup.spec.max_position_embeddings
    )
    shares = [request.gpu_memory_utilization] if request.gpu_memory_utilization else _utilizations(setup, version)
    seqs_ladder = [seqs] if request.max_num_seqs else [seqs, *(n for n in _SEQS_LADDER if n < seqs)]
    batched_ladder = (
        [batched] if request.max_num_batched_tokens else [batched, *(n for n in _BATCHED_LADDER if n < batched)]
    )
    for share in shares:
        for tokens in batched_ladder:
            for count in seqs_ladder:
                yield VllmAccount(setup, weights, count, tokens, share)


def _utilizations(setup: Setup, version: VllmVersion) -> list[float]:
    """The release's default and then more of the card, neither above what others leave free."""
    if setup.on_cpu:
        return [_CPU_SHARE * setup.devices[0].available_bytes / setup.devices[0].total_bytes]
    free = min(device.available_bytes / device.total_bytes for device in setup.devices)
    if setup.request.share_bytes is not None:
        free = min(free, setup.request.share_bytes / setup.devices[0].total_bytes)
        return [_floor(free - _context_share(setup) - _HEADROOM)]
    # vLLM refuses to start when less than its share is free, and the CUDA context is part of what is taken.
    most = _floor(min(_MOST_UTILIZATION, free - _context_share(setup) - _HEADROOM))
    return sorted({min(version.default_utilization, most), most})


def _context_share(setup: Setup) -> float:
    return cuda_context(setup).num_bytes / setup.devices[0].total_bytes


def _floor(share: float) -> float:
    return max(0.01, int(share * 100) / 100)


def _settle_transformers(setup: Setup, room_tokens: int) -> Plan:
    if setup.spec.head.kind == "score":
        return _settle_scorer(setup)
    request = setup.request
    seqs = request.max_num_seqs or (_CPU_MAX_NUM_SEQS if setup.on_cpu else 16)
    batched = request.max_num_batched_tokens or (_CPU_BATCHED_TOKENS if setup.on_cpu else _CUDA_BATCHED_TOKENS)
    account = TransformersAccount(setup, seqs if request.max_num_seqs or _pool(setup) else 1, batched)
    need = request.max_model_len or min(setup.spec.max_position_embeddings, room_tokens)
    prompt_len = request.prompt_len or need
    activations = account.activations_bytes(prompt_len, need)
    share = 1.0 if request.share_bytes is None else request.share_bytes / setup.devices[0].available_bytes
    left = account.room(activations, min(share, _CPU_SHARE if setup.on_cpu else _CUDA_SHARE)) - account.weights_bytes
    pool, max_model_len = _pool_bytes(account, left, need)
    spread = account.spread(pool, activations, min(share, 1.0))
    fits = spread is not None and account.tokens_of(pool) >= max_model_len
    workload = Workload(max_model_len, account.max_num_seqs, batched, request.prompt_len or max_model_len)
    names: list[int | str] = ["cpu"] if setup.on_cpu else list(range(len(setup.devices)))
    held = [(spread.weights_on(n), spread.cache_on(n)) for n in names] if spread else []
    if not spread:
        held = [(account.weights_bytes // len(names), pool // len(names))] * len(names)
    if len(names) == 1 and (spread is None or len(set(spread.device_map.values())) == 1):
        held = [(account.weights_bytes, pool)]
    devices = tuple(
        account.device(device, weights, cache, peak)
        for device, (weights, cache), peak in zip(setup.devices, held, activations, strict=True)
    )
    device_map = _device_map(spread.device_map if spread else None)
    placement = Placement(device_map=device_map, kv_cache_memory_bytes=pool)
    tokens = account.tokens_of(pool)
    plan = _plan(setup, workload, placement, devices, tokens, tokens / max_model_len)
    if fits:
        return plan
    wanted = account.pool_bytes(need)
    return _refused(plan, max(1, wanted - left), wanted, left)


def _settle_scorer(setup: Setup) -> Plan:
    """A reward model scores packed batches in one pass: weights and activations, no cache."""
    request = setup.request
    length = request.max_model_len or min(setup.spec.max_position_embeddings, _SCORER_LENGTH)
    batched = request.max_num_batched_tokens or max(length, _CPU_BATCHED_TOKENS)
    account = TransformersAccount(setup, request.max_num_seqs or _CPU_MAX_NUM_SEQS, batched)
    activations = account.activations_bytes(length, length)[0]
    device = account.device(setup.devices[0], account.weights_bytes, 0, activations)
    workload = Workload(length, account.max_num_seqs, batched, length)
    placement = Placement(device_map="cpu" if setup.on_cpu else "cuda:0")
    plan = _plan(setup, workload, placement, (device,), 0, batched / length)
    return plan if device.free_bytes >= 0 else _refused(plan, -device.free_bytes, 0, device.free_bytes)


def _pool(setup: Setup) -> bool:
    return TransformersAccount(setup, 1, 1).has_pool


def _pool_bytes(account: TransformersAccount, left: int, need: int) -> tuple[int, int]:
    """(KV pool, max_model_len): sized for the workload, bounded by a share of what is left, at least one sequence."""
    setup, request = account.setup, account.setup.request
    if request.kv_cache_memory_bytes is not None:
        pool = request.kv_cache_memory_bytes
        return pool, request.max_model_len or max(1, min(setup.spec.max_position_embeddings, account.tokens_of(pool)))
    if not account.has_pool:  # one `generate` call: exactly the sequences that were asked for
        return account.pool_bytes(need * account.max_num_seqs), need
    most = int(max(0, left) * (_CPU_POOL_SHARE if setup.on_cpu else 1.0))
    affordable = account.tokens_of(most)
    max_model_len = request.max_model_len or max(need, min(setup.spec.max_position_embeddings, affordable))
    per_sequence = _CPU_POOL_TOKENS_PER_SEQ if setup.on_cpu else _CUDA_POOL_TOKENS_PER_SEQ
    wanted = max(max_model_len, account.max_num_seqs * min(max_model_len, per_sequence))
    return account.pool_bytes(max(max_model_len, min(wanted, affordable))), max_model_len


def _device_map(full: DeviceMap | None) -> DeviceMap | str | None:
    if full is None:
        return None
    places = set(full.values())
    if len(places) == 1:
        only = places.pop()
        return "cpu" if only == "cpu" else f"cuda:{only}"
    return full


def _plan(
    setup: Setup,
    workload: Workload,
    placement: Placement,
    devices: tuple[DevicePlan, ...],
    kv_cache_tokens: int,
    max_concurrency: float,
) -> Plan:
    element = kv_element_bytes(setup.request.kv_cache_dtype, setup.dtype)
    return Plan(
        model=ModelSummary(
            setup.checkpoint.id,
            setup.spec.architecture,
            setup.checkpoint.parameters,
            kv_bytes_per_token(setup.spec, element),
        ),
        engine=setup.engine,
        engine_version=setup.engine_version,
        quant=setup.quant,
        dtype=setup.dtype,
        kv_cache_dtype=setup.request.kv_cache_dtype,
        workload=workload,
        placement=placement,
        devices=devices,
        kv_cache_tokens=kv_cache_tokens,
        max_concurrency=round(max_concurrency, 2),
        fits=True,
    )


def _refused(plan: Plan, short_bytes: int, wanted_bytes: int, left_bytes: int) -> Plan:
    device = min(plan.devices, key=lambda item: item.free_bytes)
    left = f"{format_bytes(left_bytes)} left" if left_bytes >= 0 else f"{format_bytes(-left_bytes)} overdrawn"
    why = (
        f"{short_bytes / GIB:.2f} GiB short on {device.name}: {format_bytes(device.weights_bytes)} of weights, "
        f"{format_bytes(device.activations_bytes)} of activations and the engine's own memory leave the KV cache "
        f"{left}, and one sequence of {plan.workload.max_model_len} tokens needs {format_bytes(wanted_bytes)}"
    )
    return replace(plan, fits=False, why_not=why, short_bytes=short_bytes)
