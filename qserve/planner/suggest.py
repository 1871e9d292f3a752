"""The nearest changes after which a plan fits, each tried before it is offered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware, known_gpus
from qserve.core.quantization import FAMILIES, SCHEMES
from qserve.planner.plan import Plan, Suggestion
from qserve.planner.request import Offload, PlanRequest
from qserve.planner.setup import Setup
from qserve.units import format_bytes

__all__ = ["suggestions"]

Try = Callable[[Checkpoint, Hardware, PlanRequest], Plan | None]
_MOST = 6
# What people can get, by size.
_COMMON = ("rtx-4070-ti-super", "rtx-4090", "rtx-5090", "l40s", "a100-80gb", "h100-sxm", "h200")


@dataclass(frozen=True)
class _Change:
    """A changed request or machine, in words and as flags (None takes a flag away)."""

    change: str
    cost: str
    request: PlanRequest
    hardware: Hardware
    model: str
    gpu: str | None = None


Kind = tuple[bool, list[_Change]]
"""Whether later changes of the kind cost more than earlier ones, and the changes."""


def suggestions(setup: Setup, attempt: Try) -> tuple[Suggestion, ...]:
    """Ways out that were counted and fit: the first of every kind, the least painful kind first."""
    kinds = (_smaller_workload(setup), _fewer_bits(setup), _offload(setup), _more_cards(setup), _larger_card(setup))
    found = (first for kind in kinds for first in _that_fit(kind, setup.checkpoint, attempt))
    return tuple(islice(found, _MOST))


def _that_fit(kind: Kind, checkpoint: Checkpoint, attempt: Try) -> Iterator[Suggestion]:
    """Those of a kind that fit; of an ordered kind (cards, precision) the first alone, as later ones cost more."""
    is_ordered, changes = kind
    for change in changes:
        better = attempt(checkpoint, change.hardware, change.request)
        if better is None:
            continue
        got = f"then {better.kv_cache_tokens} tokens of KV cache, max_model_len {better.workload.max_model_len}"
        yield Suggestion(change.change, f"{change.cost}; {got}", _command(change))
        if is_ordered:
            return


def _smaller_workload(setup: Setup) -> Kind:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    changes: list[_Change] = []
    if request.gpu_memory_utilization:
        freed = replace(request, gpu_memory_utilization=None)
        changes.append(_Change("let the planner choose the memory fraction", "nothing", freed, hardware, model))
    if request.max_model_len:
        shorter = replace(request, max_model_len=max(512, request.max_model_len // 2))
        cost = "longer conversations are refused"
        changes.append(_Change(f"max_model_len {shorter.max_model_len}", cost, shorter, hardware, model))
    if request.max_num_seqs and request.max_num_seqs > 1:
        fewer = replace(request, max_num_seqs=max(1, request.max_num_seqs // 4))
        cost = "fewer requests run at once, the others wait"
        changes.append(_Change(f"max_num_seqs {fewer.max_num_seqs}", cost, fewer, hardware, model))
    if setup.engine == "vllm" and not setup.on_cpu:
        changes += _engine_knobs(setup)
    return False, changes


def _engine_knobs(setup: Setup) -> list[_Change]:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    changes: list[_Change] = []
    if request.kv_cache_dtype == "auto":
        halved = replace(request, kv_cache_dtype="fp8")
        changes.append(_Change("KV cache in fp8", "a little accuracy on long contexts", halved, hardware, model))
    if not request.enforce_eager:
        eager = replace(request, enforce_eager=True)
        changes.append(_Change("no CUDA graphs", "slower decoding of few sequences", eager, hardware, model))
    if (request.max_loras or 1) > 1:
        fewer = replace(request, max_loras=(request.max_loras or 1) // 2)
        cost = "fewer adapters run at once, requests for others wait"
        changes.append(_Change(f"{fewer.max_loras} adapters at once", cost, fewer, hardware, model))
    if setup.spec.vision and not request.language_model_only:
        if request.limit_mm_per_prompt is None:
            images_only = replace(request, limit_mm_per_prompt='{"video": 0}')
            changes.append(_Change("no videos", "images only", images_only, hardware, model))
        text_only = replace(request, language_model_only=True)
        changes.append(_Change("no vision encoder", "no images", text_only, hardware, model))
    return changes


def _fewer_bits(setup: Setup) -> Kind:
    quality = SCHEMES[setup.quant.scheme].quality
    options = (("fp8", "hardly any accuracy"), ("int8", "little accuracy"), ("4bit", "some points on hard benchmarks"))
    if setup.checkpoint.spec.quantization is not None:
        return True, []
    return True, [
        _Change(f"weights in {quant}", cost, _in(setup.request, quant), setup.hardware, setup.checkpoint.id)
        for quant, cost in options
        if max(SCHEMES[name].quality for name in FAMILIES[quant]) < quality
    ]


def _in(request: PlanRequest, quant: str) -> PlanRequest:
    return replace(request, quant=quant, dtype=None)


def _offload(setup: Setup) -> Kind:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    if setup.on_cpu or request.offload != "none":
        return True, []
    base = request.without_vllm()
    ram = format_bytes(hardware.ram_available_bytes)
    costs: tuple[tuple[Offload, str, str], ...] = (
        ("cpu", "RAM", f"layers in RAM ({ram} available) cross the bus for every token: seconds per token"),
        ("disk", "RAM and on disk", "layers on disk are read again for every token: tens of seconds per token"),
    )
    return True, [
        _Change(f"transformers with layers in {place}", cost, replace(base, offload=offload), hardware, model)
        for offload, place, cost in costs
    ]


def _more_cards(setup: Setup) -> Kind:
    if setup.on_cpu:
        return True, []
    request = replace(setup.request, tensor_parallel_size=None, pipeline_parallel_size=None)
    card, have = setup.hardware.devices[0], len(setup.hardware.devices)
    name = _gpu_flag(card)
    return True, [
        _Change(
            f"{count} cards of this kind",
            f"{count - have} more {card.name}",
            request,
            replace(setup.hardware, devices=(card,) * count),
            setup.checkpoint.id,
            f"{name}{_count(name, count)}",
        )
        for count in (2, 4, 8)
        if count > have
    ]


def _larger_card(setup: Setup) -> Kind:
    if setup.on_cpu:
        return True, []
    request = replace(setup.request, tensor_parallel_size=None, pipeline_parallel_size=None)
    cards = [(known_gpus()[key], key) for key in _COMMON]
    larger = [pair for pair in cards if pair[0].total_bytes > setup.hardware.devices[0].total_bytes]
    return True, [
        _Change(
            f"one {card.name}",
            f"another card, of {format_bytes(card.total_bytes)}",
            request,
            replace(setup.hardware, devices=(card,)),
            setup.checkpoint.id,
            key,
        )
        for card, key in larger
    ]


def _gpu_flag(device: Device) -> str:
    names = [key for key, card in known_gpus().items() if card.name == device.name]
    return names[0] if names else f"memory={device.total_bytes},sm={max(1, device.sm_count)}"


def _count(name: str, count: int) -> str:
    return f",count={count}" if "=" in name else f":{count}"


def _command(change: _Change) -> str:
    """The changed request as a command: every field that is not its default, and the cards."""
    parts = ["qserve", "plan", "--model", change.model]
    gpu = change.gpu or _gpus(change.hardware)
    if gpu:
        parts += ["--gpu", gpu]
    for item in fields(PlanRequest):
        value = getattr(change.request, item.name)
        if value != item.default:
            parts += _flag(item.name.replace("_", "-"), value)
    return shlex.join(parts)


def _flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _gpus(hardware: Hardware) -> str | None:
    if not hardware.devices:
        return None
    name = _gpu_flag(hardware.devices[0])
    return name + (_count(name, len(hardware.devices)) if len(hardware.devices) > 1 else "")
