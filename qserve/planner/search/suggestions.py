"""The nearest changes after which a plan fits, each tried before it is offered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import islice

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware, known_gpus
from qserve.core.quantization import FAMILIES, SCHEMES
from qserve.planner.engines.vllm.constants import TRANSFORMERS_VERSION
from qserve.planner.plan import Plan, Suggestion
from qserve.planner.request import Offload, PlanRequest
from qserve.planner.setup import Setup
from qserve.planner.siblings import base_of
from qserve.units import format_bytes

__all__ = ["suggestions"]

Try = Callable[[Checkpoint, Hardware, PlanRequest], Plan | None]
_MOST = 6
_LENGTH_STEP, _LEAST_LENGTH = 256, 512
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
    checkpoint: Checkpoint | None = None


Kind = tuple[bool, list[_Change]]
"""Whether later changes of the kind cost more than earlier ones, and the changes."""


def suggestions(setup: Setup, refused: Plan, attempt: Try) -> tuple[Suggestion, ...]:
    """Ways out of the `refused` plan that were counted and fit: the first of a kind, the least painful kind first."""
    kinds = (
        _shorter(setup, refused),
        _fewer_sequences(setup),
        _smaller_step(setup),
        _smaller_workload(setup),
        _fewer_adapters(setup),
        _fewer_bits(setup),
        _offload(setup),
        _more_cards(setup),
        _larger_card(setup),
    )
    found = (first for kind in kinds for first in _that_fit(kind, setup.checkpoint, attempt))
    return tuple(islice(found, _MOST))


def _that_fit(kind: Kind, checkpoint: Checkpoint, attempt: Try) -> Iterator[Suggestion]:
    """Those of a kind that fit; of an ordered kind (cards, precision) the first alone, as later ones cost more."""
    is_ordered, changes = kind
    for change in changes:
        better = attempt(change.checkpoint or checkpoint, change.hardware, change.request)
        if better is None:
            continue
        got = f"then {better.kv_cache_tokens} tokens of KV cache, max_model_len {better.workload.max_model_len}"
        yield Suggestion(change.change, f"{change.cost}; {got}", _command(change))
        if is_ordered:
            return


def _shorter(setup: Setup, refused: Plan) -> Kind:
    """What is left of the cache holds that many tokens of one sequence; where the account is rough, half, and so on."""
    request, asked = setup.request, setup.request.max_model_len
    if asked is None:
        return True, []
    whole = refused.kv_cache_tokens // _LENGTH_STEP * _LENGTH_STEP
    halves = (asked >> times for times in range(1, asked.bit_length()))
    lengths = dict.fromkeys(n for n in (whole, *halves) if _LEAST_LENGTH <= n < asked)
    return True, [
        _Change(
            f"max_model_len {length}",
            "longer conversations are refused",
            replace(request, max_model_len=length, prompt_len=request.prompt_len and min(request.prompt_len, length)),
            setup.hardware,
            setup.checkpoint.id,
        )
        for length in sorted(lengths, reverse=True)
    ]


def _halves(
    setup: Setup,
    most: int | None,
    limited: Callable[[int], PlanRequest],
    label: Callable[[int], str],
    cost: str,
    least: int = 1,
) -> Kind:
    """A limit of the request at a half, a quarter, … of the `most` that was refused, down to `least`."""
    most = most or 1
    return True, [
        _Change(label(most >> times), cost, limited(most >> times), setup.hardware, setup.checkpoint.id)
        for times in range(1, most.bit_length())
        if most >> times >= least
    ]


def _fewer_sequences(setup: Setup) -> Kind:
    request = setup.request
    return _halves(
        setup,
        request.max_num_seqs,
        lambda number: replace(request, max_num_seqs=number),
        "max_num_seqs {}".format,
        "fewer requests run at once, the others wait",
    )


def _smaller_step(setup: Setup) -> Kind:
    request = setup.request
    return _halves(
        setup,
        request.max_num_batched_tokens,
        lambda number: replace(request, max_num_batched_tokens=number),
        "max_num_batched_tokens {}".format,
        "long prompts take more steps",
        least=max(_LEAST_LENGTH, request.max_num_seqs or 1),
    )


def _fewer_adapters(setup: Setup) -> Kind:
    request = setup.request
    return _halves(
        setup,
        request.max_loras,
        lambda number: replace(request, max_loras=number),
        lambda number: f"{number} {'adapters' if number > 1 else 'adapter'} at once",
        "requests for other adapters wait",
    )


def _smaller_workload(setup: Setup) -> Kind:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    changes: list[_Change] = []
    if request.gpu_memory_utilization:
        freed = replace(request, gpu_memory_utilization=None)
        changes.append(_Change("let the planner choose the memory fraction", "nothing", freed, hardware, model))
    if request.kv_cache_memory_bytes:
        chosen = replace(request, kv_cache_memory_bytes=None)
        changes.append(_Change("let the planner choose the KV cache", "nothing", chosen, hardware, model))
    if request.prompt_logprobs:
        unscored = replace(request, prompt_logprobs=False)
        cost = "no log-probabilities of prompts: lm-eval's multiple choice fails"
        changes.append(_Change("no room for prompt log-probabilities", cost, unscored, hardware, model))
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
    if setup.spec.vision and not request.language_model_only:
        if request.limit_mm_per_prompt is None:
            images_only = replace(request, limit_mm_per_prompt='{"video": 0}')
            changes.append(_Change("no videos", "images only", images_only, hardware, model))
        text_only = replace(request, language_model_only=True)
        changes.append(_Change("no vision encoder", "no images", text_only, hardware, model))
    return changes


def _fewer_bits(setup: Setup) -> Kind:
    quality, checkpoint, model = SCHEMES[setup.quant.scheme].quality, setup.checkpoint, setup.checkpoint.id
    if checkpoint.spec.quantization is not None:
        base = base_of(model)
        if base is None:
            return True, []
        plain = replace(checkpoint.spec, quantization=None, id=base)
        checkpoint, model = Checkpoint(base, None, checkpoint.config, plain), base
    options = (("fp8", "hardly any accuracy"), ("int8", "little accuracy"), ("4bit", "some points on hard benchmarks"))
    return True, [
        _Change(f"weights in {quant}", cost, _in(setup.request, quant), setup.hardware, model, checkpoint=checkpoint)
        for quant, cost in options
        if max(SCHEMES[name].quality for name in FAMILIES[quant]) < quality
    ]


def _in(request: PlanRequest, quant: str) -> PlanRequest:
    return replace(request, quant=quant, dtype=None)


def _offload(setup: Setup) -> Kind:
    request, hardware, model = setup.request, setup.hardware, setup.checkpoint.id
    if setup.on_cpu or request.offload != "none" or request.enable_lora:  # it serves no adapters
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
    """The smallest of the usual cards; for a CPU any card is larger."""
    request = replace(setup.request, tensor_parallel_size=None, pipeline_parallel_size=None)
    cards = [(known_gpus()[key], key) for key in _COMMON]
    have = 0 if setup.on_cpu else setup.hardware.devices[0].total_bytes
    larger = [pair for pair in cards if pair[0].total_bytes > have]
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
    """The card's name, or where it is not as in the table (another size, memory that others hold) its description."""
    names = [key for key, card in known_gpus().items() if card == device]
    if names:
        return names[0]
    capability = device.compute_capability
    parts = {
        "memory": str(device.total_bytes),
        "sm": str(max(1, device.sm_count)),
        "cc": f"{capability[0]}.{capability[1]}" if capability else None,
        "used": str(device.used_by_others_bytes) if device.used_by_others_bytes else None,
        "name": device.name if "," not in device.name else None,
    }
    return ",".join(f"{key}={value}" for key, value in parts.items() if value is not None)


def _count(name: str, count: int) -> str:
    return f",count={count}" if "=" in name else f":{count}"


def _command(change: _Change) -> str:
    """The changed request as a command: every field that is not its default, and the cards."""
    parts = ["qserve", "plan", "--model", change.model]
    parts += ["--gpu", change.gpu or _gpus(change.hardware)]
    # The release that the transformers engine has is nobody's choice.
    written = replace(change.request, engine_version=None) if _is_own_release(change.request) else change.request
    for item in fields(PlanRequest):
        value = getattr(written, item.name)
        if value != item.default:
            parts += _flag(item.name.replace("_", "-"), value)
    return shlex.join(parts)


def _is_own_release(request: PlanRequest) -> bool:
    return request.engine != "vllm" and request.engine_version == TRANSFORMERS_VERSION


def _flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]


def _gpus(hardware: Hardware) -> str:
    if not hardware.devices:
        return "none"
    name = _gpu_flag(hardware.devices[0])
    return name + (_count(name, len(hardware.devices)) if len(hardware.devices) > 1 else "")
