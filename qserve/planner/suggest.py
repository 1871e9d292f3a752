"""The nearest changes after which a plan fits, each tried before it is offered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware, known_gpus
from qserve.core.quantization import FAMILIES, SCHEMES
from qserve.planner.plan import Plan, Suggestion
from qserve.planner.request import PlanRequest
from qserve.planner.setup import Setup
from qserve.units import format_bytes

__all__ = ["suggestions"]

Try = Callable[[Checkpoint, Hardware, PlanRequest], Plan | None]
_MOST = 6


@dataclass(frozen=True)
class _Change:
    """A changed request or machine, in words and as flags (None takes a flag away)."""

    change: str
    cost: str
    request: PlanRequest
    hardware: Hardware
    model: str
    gpu: str | None = None


def suggestions(plan: Plan, setup: Setup, attempt: Try) -> tuple[Suggestion, ...]:
    """Up to six ways out that were counted and fit, the least painful first."""
    found: list[Suggestion] = []
    for change in _changes(plan, setup):
        better = attempt(setup.checkpoint, change.hardware, change.request)
        if better is None:
            continue
        got = f"then {better.kv_cache_tokens} tokens of KV cache, max_model_len {better.workload.max_model_len}"
        found.append(Suggestion(change.change, f"{change.cost}; {got}", _command(change)))
        if len(found) == _MOST:
            break
    return tuple(found)


def _changes(plan: Plan, setup: Setup) -> Iterator[_Change]:
    yield from _smaller_workload(plan, setup)
    yield from _fewer_bits(setup)
    yield from _offload(setup)
    yield from _more_hardware(setup)


def _smaller_workload(plan: Plan, setup: Setup) -> Iterator[_Change]:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    if request.gpu_memory_utilization:
        freed = replace(request, gpu_memory_utilization=None)
        yield _Change("let the planner choose the memory fraction", "nothing", freed, hardware, model)
    for length in (16384, 8192, 4096, 2048):
        if request.max_model_len and length < request.max_model_len:
            shorter = replace(request, max_model_len=length)
            yield _Change(f"max_model_len {length}", "longer conversations are refused", shorter, hardware, model)
            break
    if request.max_num_seqs and request.max_num_seqs > 1:
        fewer = replace(request, max_num_seqs=max(1, request.max_num_seqs // 4))
        cost = "fewer requests run at once, the others wait"
        yield _Change(f"max_num_seqs {fewer.max_num_seqs}", cost, fewer, hardware, model)
    if request.kv_cache_dtype == "auto" and setup.engine == "vllm" and not setup.on_cpu:
        halved = replace(request, kv_cache_dtype="fp8")
        yield _Change("KV cache in fp8", "a little accuracy on long contexts", halved, hardware, model)
    if not request.enforce_eager and setup.engine == "vllm" and not setup.on_cpu:
        eager = replace(request, enforce_eager=True)
        yield _Change("no CUDA graphs", "slower decoding at few sequences", eager, hardware, model)


def _fewer_bits(setup: Setup) -> Iterator[_Change]:
    quality = SCHEMES[setup.quant.scheme].quality
    for quant, cost in (
        ("fp8", "hardly any accuracy"),
        ("int8", "little accuracy"),
        ("4bit", "one to three points on hard benchmarks"),
    ):
        best = max(SCHEMES[name].quality for name in FAMILIES[quant])
        if setup.checkpoint.spec.quantization is None and best < quality:
            lower = replace(setup.request, quant=quant, dtype=None)
            yield _Change(f"weights in {quant}", cost, lower, setup.hardware, setup.checkpoint.id)


def _offload(setup: Setup) -> Iterator[_Change]:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    if setup.on_cpu or request.offload != "none":
        return
    base = replace(request, engine="transformers", engine_version=None, tensor_parallel_size=None)
    in_ram = replace(base, offload="cpu")
    ram = format_bytes(hardware.ram_available_bytes)
    cost = f"layers in RAM ({ram} available) cross the bus for every token: seconds per token"
    yield _Change("the transformers engine with layers in RAM", cost, in_ram, hardware, model)
    on_disk = replace(base, offload="disk")
    cost = "layers on disk are read for every token: tens of seconds per token"
    yield _Change("the transformers engine with layers in RAM and on disk", cost, on_disk, hardware, model)


def _more_hardware(setup: Setup) -> Iterator[_Change]:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    if setup.on_cpu:
        return
    free = replace(request, tensor_parallel_size=None, pipeline_parallel_size=None)
    for count in (2, 4, 8):
        if count > len(hardware.devices):
            cards = replace(hardware, devices=(hardware.devices[0],) * count)
            name = _gpu_flag(hardware.devices[0])
            cost = f"{count - len(hardware.devices)} more of the same card"
            yield _Change(f"{count} cards", cost, free, cards, model, f"{name}{_count(name, count)}")
            break
    larger = sorted(
        {card.total_bytes: key for key, card in known_gpus().items() if _is_common(key)}.items(),
    )
    for total_bytes, key in larger:
        if total_bytes > hardware.devices[0].total_bytes * 1.2:
            card = known_gpus()[key]
            machine = replace(hardware, devices=(card,))
            cost = f"a card of {format_bytes(total_bytes)} ({card.name})"
            yield _Change("one larger card", cost, free, machine, model, key)


_COMMON = ("rtx-4070-ti-super", "rtx-4090", "rtx-5090", "a6000", "rtx-a6000", "l40s", "a100-80gb", "h100-80gb", "h200")


def _is_common(key: str) -> bool:
    return key in _COMMON


def _gpu_flag(device: Device) -> str:
    names = [key for key, card in known_gpus().items() if card.name == device.name]
    return names[0] if names else f"memory={device.total_bytes},sm={max(1, device.sm_count)}"


def _count(name: str, count: int) -> str:
    return f",count={count}" if "=" in name else f":{count}"


def _command(change: _Change) -> str:
    request = change.request
    parts: list[str] = ["qserve", "plan", "--model", change.model]
    flags: list[tuple[str, object]] = [
        ("--quant", request.quant if request.quant != "auto" else None),
        ("--gpu", change.gpu or _gpus(change.hardware)),
        ("--engine", request.engine),
        ("--engine-version", request.engine_version),
        ("--dtype", request.dtype),
        ("--kv-cache-dtype", request.kv_cache_dtype if request.kv_cache_dtype != "auto" else None),
        ("--max-model-len", request.max_model_len),
        ("--max-num-seqs", request.max_num_seqs),
        ("--max-num-batched-tokens", request.max_num_batched_tokens),
        ("--gpu-memory-utilization", request.gpu_memory_utilization),
        ("--tensor-parallel-size", request.tensor_parallel_size),
        ("--offload", request.offload if request.offload != "none" else None),
    ]
    for name, value in flags:
        if value is not None:
            parts += [name, str(value)]
    if request.enforce_eager:
        parts.append("--enforce-eager")
    return shlex.join(parts)


def _gpus(hardware: Hardware) -> str | None:
    if not hardware.devices:
        return None
    name = _gpu_flag(hardware.devices[0])
    return name + (_count(name, len(hardware.devices)) if len(hardware.devices) > 1 else "")
