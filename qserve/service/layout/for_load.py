"""The plan for a load: every layout counted, one chosen, what it reaches and what else there was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, known_gpus
from qserve.core.schemes import SCHEMES
from qserve.errors import DoesNotFit, QserveError, UsageError
from qserve.planner.engine import changed_request, most_tokens
from qserve.planner.make import make_plan
from qserve.planner.memory.host import shared_card
from qserve.planner.plan import DevicePlan, Plan
from qserve.planner.request import PlanRequest
from qserve.planner.search.refusals import stretching_hint
from qserve.planner.speed.estimate import is_launch_bound
from qserve.planner.speed.figures import Targets
from qserve.planner.speed.price import hourly_price, price_table
from qserve.planner.speed.rate import KEPT_SHARE
from qserve.service.layout.fitting_plans import FittingPlans, words_of_four_bits
from qserve.service.layout.if_fitted import targets_json, with_speed_if_fitted
from qserve.service.layout.one_stream import with_layouts
from qserve.service.layout.search import Layout, choose_layout, device_for, layouts_for, pareto, with_rate
from qserve.service.layout.suggestions import suggestions
from qserve.service.load import SpeedRequest
from qserve.service.replicas import num_engines, why_not_in_ram
from qserve.units import format_count, format_ms

__all__ = ["cheapest_cards", "plan_for_load"]

_MOST_ALTERNATIVES = 12
_COUNTS = (1, 2, 4, 8)
_NO_WAY_OUT = "Nothing that was tried keeps the targets; ask for less, or take a smaller model"


def plan_for_load(
    checkpoint: Checkpoint,
    hardware: Hardware,
    request: PlanRequest,
    wanted: SpeedRequest,
    asked: PlanRequest | None = None,
) -> Plan:
    """The plan with its `speed`. Where nothing fits, the plan that says so, with the speed that it would have.

    Suggestions change what the user `asked` for, where `request` fixes more than that.
    """
    planned = partial(make_plan, checkpoint, hardware, measured=wanted.measured, asked=asked or request)
    if wanted.load is None and not wanted.replicas:
        return with_layouts(planned(request), checkpoint, hardware, request, wanted)
    _check_length(checkpoint, hardware, request, wanted)
    plans, tunes = FittingPlans(checkpoint), bool(wanted.targets)
    layouts = layouts_for(plans, hardware, request, wanted, tunes=tunes)
    layouts = layouts or layouts_for(plans, hardware, request, wanted, tunes=tunes, any_length=True)
    if not layouts or (wanted.replicas and num_engines(layouts[0].plan) > 1):
        refused = _refused(planned(request), hardware, wanted)
        return with_speed_if_fitted(refused, checkpoint, hardware, request, wanted)
    chosen = choose_layout(layouts, wanted.targets)
    device = device_for(hardware, chosen.plan)
    better = with_rate(chosen, checkpoint.spec, device, wanted)
    final = _planned(better, checkpoint, request, planned)
    layouts = [better if one is chosen else one for one in layouts]
    notes = (
        *_choice(better, layouts, wanted.targets, len(hardware.devices)),
        *_compared(better, layouts),
        *_on_fewer_cards(better, layouts, wanted.targets),
        *_of_better_quality(better, layouts, wanted.targets),
        *_left_out(layouts, hardware, request),
    )
    missed = better.kept < KEPT_SHARE if wanted.targets else not better.speed.figures.num_requests
    found = suggestions(plans, hardware, request, wanted, better) if missed else ()
    if wanted.targets and missed and not found:
        notes += (_NO_WAY_OUT,)
    front = pareto(layouts)
    speed = {
        **better.speed.to_json(),
        "alternatives": [one.to_json(better, id(one) in front) for one in _shown(better, layouts, front)],
        "targets": targets_json(better, wanted),
        "suggestions": [vars(one) for one in found],
        **better.price.to_json(),
        **({"replicas": 1, "engines": engines} if (engines := num_engines(final)) > 1 else {}),
    }
    return replace(
        final, speed=speed, suggestions=(*final.suggestions, *found), notes=(*_without_idle(final.notes), *notes)
    )


def cheapest_cards(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest
) -> list[tuple[str, int, Layout]]:
    """Cards and counts that carry the load, cheapest first: (key, count, layout); those that keep the targets first.

    Only cards with a price are ranked. Raises UsageError where none of them holds the model.
    """
    _check_length(checkpoint, hardware, request, wanted)
    found, plans = [], FittingPlans(checkpoint)
    for key in price_table(wanted.prices):
        device = known_gpus().get(key)
        if device is None or hourly_price(device, wanted.prices) is None:
            continue
        for count in _COUNTS:
            machine = replace(hardware, devices=(shared_card(device, hardware.host_bytes),) * count, notes=())
            layouts = layouts_for(plans, machine, request, wanted, cards=count)
            if layouts:
                best = choose_layout(layouts, wanted.targets)
                found.append((key, count, best))
                if best.kept_surely >= KEPT_SHARE and best.keeps_up:
                    break
    if not found:
        unknown = [key for key in price_table(wanted.prices) if key not in known_gpus()]
        names = f" (not known: {', '.join(unknown)}; names are those of configs/gpus.toml)" if unknown else ""
        raise UsageError(
            f"--gpu any: this model fits none of the cards with a price{names}; give --gpu, or --prices FILE"
        )
    return sorted(found, key=lambda one: (not _carries(one[2]), one[2].price.per_hour or 0.0, one[2].e2e_ms))


def _carries(layout: Layout) -> bool:
    return layout.kept >= KEPT_SHARE and layout.keeps_up


def _check_length(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, wanted: SpeedRequest) -> None:
    """Raises UsageError for requests that every server of this model would refuse."""
    load, most = wanted.named_load, most_tokens(checkpoint, hardware, request)
    if load.longest <= most:
        return
    what = (
        "the longest request of the trace"
        if load.trace
        else f"--input {load.input_tokens} --output {load.output_tokens}"
    )
    limit = "--max-model-len" if request.max_model_len else f"the context of {checkpoint.spec.id}:"
    longer = ", or raise it" if request.max_model_len else stretching_hint(checkpoint, hardware, request, load.longest)
    raise UsageError(
        f"{what}: {format_count(load.longest)} tokens are more than {limit} {format_count(most)}; shorten them{longer}"
    )


def _refused(plan: Plan, hardware: Hardware, wanted: SpeedRequest) -> Plan:
    if plan.fits and wanted.replicas:
        # Of more replicas than the cards hold that is said, of others what the RAM has.
        cards = wanted.replicas * plan.placement.num_ranks
        why = why_not_in_ram(plan, hardware, wanted.replicas) if cards <= len(hardware.devices) else None
        if why:
            raise DoesNotFit(why)
        raise UsageError(_too_many(plan, wanted.replicas, len(hardware.devices)))
    return plan


def _too_many(plan: Plan, replicas: int, have: int) -> str:
    if plan.on_cpu or is_launch_bound(plan):
        where = "a CPU" if plan.on_cpu else f"the engine {plan.engine}"
        return f"--replicas {replicas}: speed is planned for one server on {where}; leave it out"
    if num_engines(plan) > 1:
        return f"--replicas {replicas} and --data-parallel-size {num_engines(plan)}: one or the other; leave one out"
    ranks = plan.placement.num_ranks
    each = "a card" if ranks == 1 else f"{ranks} cards"
    return (
        f"--replicas {replicas} of {each} each need {replicas * ranks} cards, and {have} "
        f"{'is' if have == 1 else 'are'} there; lower --replicas or --tensor-parallel-size"
    )


def _planned(
    layout: Layout, checkpoint: Checkpoint, request: PlanRequest, planned: Callable[[PlanRequest], Plan]
) -> Plan:
    """The chosen layout's plan with its arguments and every card that it takes."""
    plan, workload = layout.plan, layout.plan.workload
    takes_ranks = not is_launch_bound(plan)
    limits = {"max_num_batched_tokens": workload.max_num_batched_tokens if takes_ranks else None}
    limits |= {name: getattr(workload, name) for name in layout.tuned}
    fixed = changed_request(
        request,
        quant=plan.quant.scheme if checkpoint.spec.quantization is None else request.quant,
        tensor_parallel_size=plan.placement.tensor_parallel_size if takes_ranks else None,
        **limits,
    )
    try:
        again = planned(fixed)
    except QserveError:
        again = plan
    again = again if again.fits else plan
    if layout.replicas == 1:
        return again
    devices: tuple[DevicePlan, ...] = again.devices * layout.replicas
    if num_engines(again) > 1:  # whose one server's plan counts what all of them hold in RAM
        return replace(again, devices=devices)
    held = {place: layout.replicas * size for place, size in again.placement.offloaded_bytes.items()}
    return replace(again, devices=devices, placement=replace(again.placement, offloaded_bytes=held))


def _shown(chosen: Layout, layouts: list[Layout], front: set[int]) -> list[Layout]:
    """The chosen one first, then by time to a whole answer.

    None is left out of the front, nor what the chosen quantization reaches with another number of cards.
    """
    rest = sorted((one for one in layouts if one is not chosen), key=lambda one: one.e2e_ms)
    alike = {one.cards: one for one in reversed(rest) if one.plan.quant.scheme == chosen.plan.quant.scheme}
    kept = {id(one) for one in (*rest[: _MOST_ALTERNATIVES - 1], *alike.values())} | front
    return [chosen, *(one for one in rest if id(one) in kept)]


def _choice(chosen: Layout, layouts: list[Layout], targets: Targets, have: int) -> Iterator[str]:
    """Why this layout, in a sentence."""
    name = chosen.name
    for limit in dict.fromkeys(chosen.tuned):
        value = getattr(chosen.plan.workload, limit)
        yield f"--{limit.replace('_', '-')} {value}: with more, fewer requests keep the targets"
    if not chosen.keeps_up and not targets:
        yield f"Requests pile up: {_waits(chosen)}; a target such as --ttft 2s plans what would keep it"
    if chosen.quality < (most := max(one.quality for one in layouts)) and not targets:
        scheme = next(one.plan.quant.scheme for one in layouts if one.quality == most)
        yield f"{scheme} is more accurate, but requests pile up with it at this load"
    idle = have - chosen.cards
    free = f"; {idle} of {have} cards stay free" if idle > 0 else ""
    if targets:
        kept, surely = (f"{100 * share:.0f} %" for share in (chosen.kept, chosen.kept_surely))
        if chosen.kept_surely >= KEPT_SHARE:
            yield f"Chose {name}: the fewest cards that keep the targets, also at the slow end of the estimate{free}"
        elif chosen.kept >= KEPT_SHARE:
            yield f"Chose {name}: {kept} keep the targets, {surely} at the slow end of the estimate{free}"
        else:
            yield f"No layout keeps the targets; with {name}, {kept} of the requests do"
            yield from _missed(chosen, targets)
        return
    yield f"Chose {name}: {_quickest(chosen, layouts)}{free}"


def _waits(chosen: Layout) -> str:
    """What shows that more comes than is answered."""
    figures, rps = chosen.speed.figures, chosen.speed.load.rps
    if rps is not None:
        return f"of {rps:g} requests/s {figures.requests_per_s:.2f} are answered"
    first, whole = format_ms(figures.ttft_ms.mean), format_ms(figures.e2e_ms.mean)
    return f"an answer waits {first} of its {whole} for the first token"


def _missed(chosen: Layout, targets: Targets) -> Iterator[str]:
    """Which target is out of reach and by how much, and which is not; each is to be kept by nine of ten requests."""
    figures = chosen.speed.figures
    for name, asked_ms, found, only in (
        ("TTFT", targets.ttft_ms, figures.ttft_ms, Targets(ttft_ms=targets.ttft_ms)),
        ("TPOT", targets.tpot_ms, figures.tpot_ms, Targets(tpot_ms=targets.tpot_ms)),
    ):
        if asked_ms is not None:
            word = "kept" if figures.kept_share(only) >= KEPT_SHARE else "missed"
            yield f"{name} {word}: {format_ms(found.p90)} for 90 % of the requests, {format_ms(asked_ms)} asked"


def _quickest(chosen: Layout, layouts: list[Layout]) -> str:
    """Among which layouts the chosen one answers soonest: quantizations of less quality are not among them."""
    scheme, same = chosen.plan.quant.scheme, [one for one in layouts if one.quality == chosen.quality]
    if len(same) == 1:
        found = f"the only layout in {scheme} that fits"
    elif chosen.e2e_ms <= min(one.e2e_ms for one in same):
        found = f"the fastest of {len(same)} layouts in {scheme} at this load"
    else:
        found = f"the fewest cards within 5 % of the fastest of {len(same)} layouts in {scheme}"
    if min(one.e2e_ms for one in layouts) < chosen.e2e_ms and len(same) < len(layouts):
        found += "; fewer bits are faster (--quant)"
    return found


def _compared(chosen: Layout, layouts: list[Layout]) -> Iterator[str]:
    """How other quantizations would do on the same cards."""
    mine = chosen.speed.figures
    for scheme in dict.fromkeys(one.plan.quant.scheme for one in layouts):
        if scheme == chosen.plan.quant.scheme:
            continue
        same = [one for one in layouts if one.plan.quant.scheme == scheme and one.cards == chosen.cards]
        if not same:
            continue
        other = min(same, key=lambda one: one.e2e_ms)
        ratio = other.speed.figures.e2e_ms.mean / (mine.e2e_ms.mean or 1.0)
        word = f"{100 * (1 - ratio):.0f} % less time" if ratio < 1 else f"{100 * (ratio - 1):.0f} % more time"
        yield f"{scheme} on as many cards ({other.name}): answers take {word}"


def _on_fewer_cards(chosen: Layout, layouts: list[Layout], targets: Targets) -> Iterator[str]:
    """Quantizations that keep the targets with fewer cards than the chosen one: what its precision costs."""
    if not targets:
        return
    able = [one for one in layouts if one.kept_surely >= KEPT_SHARE and one.cards < chosen.cards]
    for scheme in dict.fromkeys(one.plan.quant.scheme for one in able):
        one = min((one for one in able if one.plan.quant.scheme == scheme), key=lambda one: (one.cards, one.e2e_ms))
        yield (
            f"{scheme} keeps the targets on {one.cards} of these {chosen.cards} cards ({one.name}); --quant {scheme} "
            "takes it"
        )


def _of_better_quality(chosen: Layout, layouts: list[Layout], targets: Targets) -> Iterator[str]:
    """Of quantizations that lose less and keep the targets in the mean, but not surely: what choosing them risks."""
    able = [one for one in layouts if one.kept >= KEPT_SHARE and one.quality > chosen.quality]
    if not targets or not able or chosen.kept_surely < KEPT_SHARE:
        return
    one = max(able, key=lambda one: (one.quality, one.kept_surely, -one.cards))
    yield (
        f"{one.name} is more accurate: {100 * one.kept:.0f} % keep the targets, {100 * one.kept_surely:.0f} % at the "
        f"slow end of the estimate; --quant {one.plan.quant.scheme} takes it"
    )


def _left_out(layouts: list[Layout], hardware: Hardware, request: PlanRequest) -> Iterator[str]:
    """Quantizations that somebody would expect among the layouts."""
    if request.quant == "auto" and all(SCHEMES[one.plan.quant.scheme].bits != 4 for one in layouts):
        yield f"No layout in 4 bit runs here; qserve plan --quant {words_of_four_bits(hardware)} says why"


def _without_idle(notes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(note for note in notes if "enough; the others stay free" not in note)
