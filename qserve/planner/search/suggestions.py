"""The nearest changes after which a plan fits, each tried before it is offered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware, known_gpus, usual_gpus
from qserve.core.quantization import FAMILIES, SCHEMES
from qserve.planner.changes import Change, ChangeGroup, ChangeKind, change_of, halved
from qserve.planner.engine import EnginePlanner, engine_named, own_engines
from qserve.planner.plan import Plan, Suggestion
from qserve.planner.request import PlanRequest
from qserve.planner.setup import Setup
from qserve.planner.siblings import base_of
from qserve.units import format_bytes

__all__ = ["suggestions"]

Try = Callable[[Checkpoint, Hardware, PlanRequest], Plan | None]
_MOST = 6
_LENGTH_STEP, _LEAST_LENGTH = 256, 512


def suggestions(setup: Setup, refused: Plan, attempt: Try) -> tuple[Suggestion, ...]:
    """Changes after which the `refused` plan fits, each planned: the first of each kind, the cheapest kind first."""
    shared = (
        _shorter(setup, refused), _fewer_sequences(setup), _smaller_step(setup), _smaller_workload(setup),
        _fewer_bits(setup), _more_cards(setup), _larger_card(setup),
    )  # fmt: skip
    of_engines = (group for engine in _engines(setup) for group in engine.relaxations(setup))
    kinds = sorted((*shared, *of_engines), key=lambda group: group.kind)
    found = (first for kind in kinds for first in _that_fit(kind, setup.checkpoint, attempt))
    return tuple(islice(found, _MOST))


def _engines(setup: Setup) -> list[EnginePlanner]:
    """qserve's own, and the setup's where it is another one."""
    own = own_engines()
    others = [] if setup.engine in (engine.name for engine in own) else [engine_named(setup.engine)]
    return [engine.planner for engine in (*own, *others)]


def _that_fit(group: ChangeGroup, checkpoint: Checkpoint, attempt: Try) -> Iterator[Suggestion]:
    """Those of a kind that fit; of an ordered kind (cards, precision) the first alone, as later ones cost more."""
    for change in group.changes:
        better = attempt(change.checkpoint or checkpoint, change.hardware, change.request)
        if better is None:
            continue
        got = f"then {better.kv_cache_tokens} tokens of KV cache, max_model_len {better.workload.max_model_len}"
        yield Suggestion(change.change, f"{change.cost}; {got}", _command(change))
        if group.is_ordered:
            return


def _shorter(setup: Setup, refused: Plan) -> ChangeGroup:
    """What is left of the cache holds that many tokens of one sequence; else half of what was asked for, and so on."""
    request, wanted = setup.request, setup.request.max_model_len
    if wanted is None:
        return ChangeGroup(ChangeKind.LENGTH, ())
    whole = refused.kv_cache_tokens // _LENGTH_STEP * _LENGTH_STEP
    below = (wanted >> times for times in range(1, wanted.bit_length()))
    lengths = dict.fromkeys(n for n in (whole, *below) if _LEAST_LENGTH <= n < wanted)
    changes = (
        change_of(
            setup,
            f"max_model_len {length}",
            "longer conversations are refused",
            replace(request, max_model_len=length, prompt_len=request.prompt_len and min(request.prompt_len, length)),
        )
        for length in sorted(lengths, reverse=True)
    )
    return ChangeGroup(ChangeKind.LENGTH, tuple(changes))


def _fewer_sequences(setup: Setup) -> ChangeGroup:
    request = setup.request
    return halved(
        setup,
        ChangeKind.SEQUENCES,
        request.max_num_seqs,
        lambda number: replace(request, max_num_seqs=number),
        "max_num_seqs {}".format,
        "fewer requests run at once, the others wait",
    )


def _smaller_step(setup: Setup) -> ChangeGroup:
    request = setup.request
    return halved(
        setup,
        ChangeKind.STEP,
        request.max_num_batched_tokens,
        lambda number: replace(request, max_num_batched_tokens=number),
        "max_num_batched_tokens {}".format,
        "long prompts take more steps",
        least=max(_LEAST_LENGTH, request.max_num_seqs or 1),
    )


def _smaller_workload(setup: Setup) -> ChangeGroup:
    request = setup.request
    changes: list[Change] = []
    if request.kv_cache_memory_bytes:
        chosen = replace(request, kv_cache_memory_bytes=None)
        changes.append(change_of(setup, "let the planner choose the KV cache", "nothing", chosen))
    if request.prompt_logprobs:
        unscored = replace(request, prompt_logprobs=False)
        cost = "no log-probabilities of prompts: lm-eval's multiple choice fails"
        changes.append(change_of(setup, "no room for prompt log-probabilities", cost, unscored))
    return ChangeGroup(ChangeKind.CACHE, tuple(changes), is_ordered=False)


def _fewer_bits(setup: Setup) -> ChangeGroup:
    quality, checkpoint, model = SCHEMES[setup.quant.scheme].quality, setup.checkpoint, setup.checkpoint.id
    if checkpoint.spec.quantization is not None:
        base = base_of(model)
        if base is None:
            return ChangeGroup(ChangeKind.PRECISION, ())
        plain = replace(checkpoint.spec, quantization=None, id=base)
        checkpoint, model = Checkpoint(base, None, checkpoint.config, plain), base
    options = (("fp8", "hardly any accuracy"), ("int8", "little accuracy"), ("4bit", "some points on hard benchmarks"))
    changes = (
        Change(
            f"weights in {quant}", cost, replace(setup.request, quant=quant, dtype=None), setup.hardware, model,
            checkpoint=checkpoint,
        )
        for quant, cost in options
        if max(SCHEMES[name].quality for name in FAMILIES[quant]) < quality
    )  # fmt: skip
    return ChangeGroup(ChangeKind.PRECISION, tuple(changes))


def _more_cards(setup: Setup) -> ChangeGroup:
    if setup.on_cpu:
        return ChangeGroup(ChangeKind.MORE_CARDS, ())
    request = engine_named(setup.engine).planner.on_other_cards(setup.request)
    card, have = setup.hardware.devices[0], len(setup.hardware.devices)
    name = _gpu_flag(card)
    changes = (
        Change(
            f"{count} cards of this kind",
            f"{count - have} more {card.name}",
            request,
            replace(setup.hardware, devices=(card,) * count),
            setup.checkpoint.id,
            f"{name}{_count(name, count)}",
        )
        for count in (2, 4, 8)
        if count > have
    )
    return ChangeGroup(ChangeKind.MORE_CARDS, tuple(changes))


def _larger_card(setup: Setup) -> ChangeGroup:
    """The smallest of the usual cards; for a CPU any card is larger."""
    request = engine_named(setup.engine).planner.on_other_cards(setup.request)
    have = 0 if setup.on_cpu else setup.hardware.devices[0].total_bytes
    changes = (
        Change(
            f"one {card.name}",
            f"another card, of {format_bytes(card.total_bytes)}",
            request,
            replace(setup.hardware, devices=(card,)),
            setup.checkpoint.id,
            key,
        )
        for key, card in usual_gpus().items()
        if card.total_bytes > have
    )
    return ChangeGroup(ChangeKind.LARGER_CARD, tuple(changes))


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


def _command(change: Change) -> str:
    """The changed request as a command: every option that is not its default, and the cards."""
    gpu = change.gpu or _gpus(change.hardware)
    return shlex.join(["qserve", "plan", "--model", change.model, "--gpu", gpu, *change.request.words()])


def _gpus(hardware: Hardware) -> str:
    if not hardware.devices:
        return "none"
    name = _gpu_flag(hardware.devices[0])
    return name + (_count(name, len(hardware.devices)) if len(hardware.devices) > 1 else "")
