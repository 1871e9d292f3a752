"""The nearest changes after which a plan fits, each tried before it is offered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, usual_gpus
from qserve.core.model_spec import ModelSpec
from qserve.core.schemes import FAMILIES, SCHEMES
from qserve.planner.candidate import Candidate
from qserve.planner.changes import Change, ChangeGroup, ChangeKind, change_of, halved
from qserve.planner.engine import EnginePlanner, engine_named, own_engines
from qserve.planner.plan import USABLE_TPOT_MS, Plan, Suggestion
from qserve.planner.request import PlanRequest
from qserve.planner.search.gpu_flag import gpu_flag
from qserve.planner.siblings import base_of, known_config, smaller_ids
from qserve.planner.speed.calibration import NOTHING_MEASURED, Measured
from qserve.planner.speed.estimate import estimate_speed
from qserve.planner.speed.terms.engine_costs import has_speed
from qserve.units import format_bytes, format_count

__all__ = ["faster", "suggestions"]

Try = Callable[[Checkpoint, Hardware, PlanRequest], Plan | None]
_MOST = 8
_MOST_SMALLER = 2
_LENGTH_STEP, _LEAST_LENGTH = 256, 512


def suggestions(
    candidate: Candidate, refused: Plan, attempt: Try, measured: Measured = NOTHING_MEASURED
) -> tuple[Suggestion, ...]:
    """Changes after which the `refused` plan fits, each planned: the first of each kind, by the order of kinds.

    Their speed is that of one stream; `measured` is what is known of this machine.
    """
    shared = (
        _smaller_models(candidate),
        _shorter(candidate, refused),
        _fewer_sequences(candidate),
        _smaller_step(candidate),
        *_smaller_workload(candidate),
        _fewer_bits(candidate),
        _more_cards(candidate),
        _larger_card(candidate),
    )
    of_engines = (group for engine in _engines(candidate) for group in engine.suggestions(candidate))
    kinds = sorted((*shared, *of_engines), key=lambda group: group.kind)
    found = (one for kind in kinds for one in _first_of(kind, _that_fit(kind, candidate.checkpoint, attempt, measured)))
    return tuple(islice(found, _MOST))


def faster(
    candidate: Candidate, plan: Plan, attempt: Try, measured: Measured = NOTHING_MEASURED
) -> tuple[Suggestion, ...]:
    """For a plan that fits and is too slow to chat: a smaller model, fewer bits and another card that are not."""
    _, tpot_ms = _speed(plan, candidate.checkpoint, candidate.hardware, measured)
    if tpot_ms is None or tpot_ms <= USABLE_TPOT_MS:
        return ()
    kinds = (_smaller_models(candidate), _fewer_bits(candidate), _larger_card(candidate))
    found = (_that_fit(kind, candidate.checkpoint, attempt, measured) for kind in kinds)
    usable = (next((one for one in some if one.is_usable), None) for some in found)
    return tuple(one for one in usable if one is not None)


def _engines(candidate: Candidate) -> list[EnginePlanner]:
    """qserve's own, and the candidate's where it is another one."""
    own = own_engines()
    others = [] if candidate.engine in (engine.name for engine in own) else [engine_named(candidate.engine)]
    return [engine.planner for engine in (*own, *others)]


def _first_of(group: ChangeGroup, found: Iterator[Suggestion]) -> list[Suggestion]:
    """`most` of those that fit; of smaller models the largest that is fast enough is one of them."""
    if group.kind is not ChangeKind.SMALLER_MODEL:
        return list(islice(found, group.most))
    models = list(found)
    usable = [one for one in models if one.is_usable][:1]
    return [*usable, *(one for one in models if one not in usable)][: group.most]


def _that_fit(group: ChangeGroup, checkpoint: Checkpoint, attempt: Try, measured: Measured) -> Iterator[Suggestion]:
    for change in group.changes:
        plan = attempt(change.checkpoint or checkpoint, change.hardware, change.request)
        if plan is None:
            continue
        # A smaller model with the precision in which it fits.
        precision = f" in {SCHEMES[plan.quant.scheme].bits:g} bit" if group.kind is ChangeKind.SMALLER_MODEL else ""
        cost = f"{change.cost}; requests of up to {format_count(plan.workload.max_model_len)} tokens"
        rate, tpot_ms = _speed(plan, change.checkpoint or checkpoint, change.hardware, measured)
        yield Suggestion(change.change + precision, cost, _command(change), rate, tpot_ms)


def _speed(
    plan: Plan, checkpoint: Checkpoint, hardware: Hardware, measured: Measured
) -> tuple[float, float] | tuple[None, None]:
    """Tokens a second and milliseconds a token of one stream."""
    if not has_speed(plan.engine) or checkpoint.spec.head.kind == "score":
        return None, None
    device = hardware.cpu_device if plan.on_cpu or not hardware.devices else hardware.devices[0]
    figures = estimate_speed(plan, checkpoint.spec, device, None, measured=measured).figures
    return round(figures.output_tokens_per_s, 4), round(figures.tpot_ms.mean, 3)


def _smaller_models(candidate: Candidate) -> ChangeGroup:
    """Of the same family, the largest first; none of a reward model, which is trained."""
    checkpoint = candidate.checkpoint
    if checkpoint.spec.head.kind == "score":
        return ChangeGroup(ChangeKind.SMALLER_MODEL, ())
    found = (_bundled(model) for model in smaller_ids(checkpoint.id))
    smaller = [one for one in found if one.parameters < checkpoint.parameters]
    changes = (
        Change(one.id, "a smaller model", candidate.request, candidate.hardware, one.id, checkpoint=one)
        for one in sorted(smaller, key=lambda one: -one.parameters)
    )
    return ChangeGroup(ChangeKind.SMALLER_MODEL, tuple(changes), most=_MOST_SMALLER)


def _bundled(model_id: str) -> Checkpoint:
    config = known_config(model_id) or {}
    return Checkpoint(model_id, None, config, ModelSpec.from_config(config, model_id))


def _shorter(candidate: Candidate, refused: Plan) -> ChangeGroup:
    """What is left of the cache holds that many tokens of one sequence; else half of what was asked for, and so on."""
    request, wanted = candidate.request, candidate.request.max_model_len
    if wanted is None:
        return ChangeGroup(ChangeKind.LENGTH, ())
    whole = refused.kv_cache_tokens // _LENGTH_STEP * _LENGTH_STEP
    below = (wanted >> times for times in range(1, wanted.bit_length()))
    lengths = dict.fromkeys(n for n in (whole, *below) if _LEAST_LENGTH <= n < wanted)
    changes = (
        change_of(
            candidate,
            f"max_model_len {length}",
            "longer conversations are refused",
            replace(
                request,
                max_model_len=length,
                context=request.context and length,
                prompt_len=request.prompt_len and min(request.prompt_len, length),
            ),
        )
        for length in sorted(lengths, reverse=True)
    )
    return ChangeGroup(ChangeKind.LENGTH, tuple(changes))


def _fewer_sequences(candidate: Candidate) -> ChangeGroup:
    request = candidate.request
    return halved(
        candidate,
        ChangeKind.SEQUENCES,
        request.max_num_seqs,
        lambda number: replace(request, max_num_seqs=number),
        "max_num_seqs {}".format,
        "fewer requests run at once, the others wait",
    )


def _smaller_step(candidate: Candidate) -> ChangeGroup:
    request = candidate.request
    return halved(
        candidate,
        ChangeKind.STEP,
        request.max_num_batched_tokens,
        lambda number: replace(request, max_num_batched_tokens=number),
        "max_num_batched_tokens {}".format,
        "long prompts take more steps",
        least=max(_LEAST_LENGTH, request.max_num_seqs or 1),
    )


def _smaller_workload(candidate: Candidate) -> Iterator[ChangeGroup]:
    request = candidate.request
    if request.kv_cache_memory_bytes:
        chosen = replace(request, kv_cache_memory_bytes=None)
        change = change_of(candidate, "let the planner choose the KV cache", "costs nothing", chosen)
        yield ChangeGroup(ChangeKind.OWN_SETTING, (change,))
    if request.prompt_logprobs:
        unscored = replace(request, prompt_logprobs=False)
        change = change_of(
            candidate, "no room for prompt log-probabilities", "lm-eval's multiple choice fails", unscored
        )
        yield ChangeGroup(ChangeKind.CACHE, (change,))


def _fewer_bits(candidate: Candidate) -> ChangeGroup:
    quality, checkpoint, model = (
        SCHEMES[candidate.quant.scheme].quality,
        candidate.checkpoint,
        candidate.checkpoint.name,
    )
    if checkpoint.spec.quantization is not None:
        base = base_of(checkpoint.id)
        if base is None:
            return ChangeGroup(ChangeKind.PRECISION, ())
        plain = replace(checkpoint.spec, quantization=None, id=base)
        checkpoint, model = Checkpoint(base, None, checkpoint.config, plain), base
    options = (
        ("fp8", "fp8", "hardly less accurate"),
        ("int8", "int8", "slightly less accurate"),
        ("4bit", "4 bit", "loses some points on hard benchmarks"),
    )
    changes = (
        Change(
            f"weights in {name}",
            cost,
            replace(candidate.request, quant=quant, dtype=None),
            candidate.hardware,
            model,
            checkpoint=checkpoint,
        )
        for quant, name, cost in options
        if max(SCHEMES[name].quality for name in FAMILIES[quant]) < quality
    )
    return ChangeGroup(ChangeKind.PRECISION, tuple(changes))


def _more_cards(candidate: Candidate) -> ChangeGroup:
    if candidate.on_cpu:
        return ChangeGroup(ChangeKind.MORE_CARDS, ())
    request = engine_named(candidate.engine).planner.on_other_cards(candidate.request)
    card, have = candidate.hardware.devices[0], len(candidate.hardware.devices)
    changes = (
        Change(
            f"{count} × {card.name}",
            f"{count - have} more {'card' if count - have == 1 else 'cards'}",
            request,
            replace(candidate.hardware, devices=(card,) * count),
            candidate.checkpoint.name,
            gpu_flag(card, count),
        )
        for count in (2, 4, 8)
        if count > have
    )
    return ChangeGroup(ChangeKind.MORE_CARDS, tuple(changes))


def _larger_card(candidate: Candidate) -> ChangeGroup:
    """The smallest of the usual cards; for a CPU any card is larger."""
    request = engine_named(candidate.engine).planner.on_other_cards(candidate.request)
    have = 0 if candidate.on_cpu else candidate.hardware.devices[0].total_bytes
    changes = (
        Change(
            f"one {card.name}",
            f"another card, of {format_bytes(card.total_bytes, 0)}",
            request,
            replace(candidate.hardware, devices=(card,)),
            candidate.checkpoint.name,
            key,
        )
        for key, card in usual_gpus().items()
        if card.total_bytes > have
    )
    return ChangeGroup(ChangeKind.LARGER_CARD, tuple(changes))


def _command(change: Change) -> str:
    """The changed request as a command: every option that is not its default, and the cards."""
    gpu = change.gpu or _gpus(change.hardware)
    return shlex.join(["qserve", "plan", "--model", change.model, "--gpu", gpu, *change.request.words()])


def _gpus(hardware: Hardware) -> str:
    if not hardware.devices:
        return "none"
    return gpu_flag(hardware.devices[0], len(hardware.devices))
