"""Replicas of one model on one machine: the part of it that each gets, and the plan for that part.

Cards go to replicas whole, `tensor_parallel_size` to each. Where there are more replicas than that, those of one card
share its memory evenly. On a CPU all share RAM and cores evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.errors import DoesNotFit, UsageError
from qserve.planner.engine import changed_request, most_tokens, option_value
from qserve.planner.fits import check_fits
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.units import format_bytes

__all__ = [
    "AUTO",
    "NumReplicas",
    "ReplicaPlan",
    "as_one",
    "most_in_ram",
    "num_engines",
    "plan_replicas",
    "share_out",
    "spread",
    "why_not_in_ram",
]

AUTO: Literal["auto"] = "auto"
NumReplicas = int | Literal["auto"]
"""How many replicas; `auto`: as many as the cards hold."""
_DATA_PARALLEL = "--data-parallel-size"
_RANKS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class ReplicaPlan:
    """One replica: its plan, the cards that it may see (none on a CPU), its cores (None: all).

    `num_sharers`: replicas on its card or CPU, itself among them.
    """

    plan: Plan
    cards: tuple[Device, ...] = ()
    num_cores: int | None = None
    num_sharers: int = 1


def plan_replicas(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, count: NumReplicas, flag: str = "--replicas"
) -> list[ReplicaPlan]:
    """A plan for each of `count` replicas; all of them fit.

    `auto` takes the fewest cards a replica on which the model fits with its limits, and as many replicas as that
    leaves; on a CPU one. Raises DoesNotFit or UsageError with one sentence that says what would work.
    """
    engines = _data_parallel_size(request)
    if engines > 1:
        return [_spread_experts(checkpoint, hardware, request, engines, count, flag)]
    if count == 1:
        return _fitting(checkpoint, hardware, request, 1, 0, flag)
    if not hardware.devices or make_plan(checkpoint, hardware, request).on_cpu:
        return _fitting(checkpoint, hardware, request, 1 if count == AUTO else count, 0, flag)
    if count == AUTO:
        return _as_many(checkpoint, hardware, request, flag)
    fixed = _fixed_ranks(request)
    most = max(1, len(hardware.devices) // count)
    refused: DoesNotFit | None = None
    if fixed and fixed > 1 and fixed * count > len(hardware.devices):
        raise UsageError(
            f"{flag} {count} times {fixed} cards each are more than the {len(hardware.devices)} that are there; "
            f"lower {flag} or --tensor-parallel-size"
        )
    for ranks in [fixed] if fixed else [one for one in _RANKS if one <= most]:
        try:
            return _fitting(checkpoint, hardware, _with_ranks(request, ranks), count, ranks, flag)
        except DoesNotFit as error:
            refused = refused or error
    assert refused is not None, "one number of ranks was tried"
    raise refused


def spread(plan: Plan, hardware: Hardware, count: int) -> list[ReplicaPlan]:
    """`count` replicas of a plan that counts on whole cards for each, as a plan for a load does."""
    ranks = plan.placement.num_ranks
    held = {place: num_bytes // count for place, num_bytes in plan.placement.offloaded_bytes.items()}
    own = replace(plan.placement, offloaded_bytes=held)
    one = replace(plan, devices=plan.devices[:ranks], placement=own) if count > 1 else plan
    if plan.on_cpu or count == 1:
        return [ReplicaPlan(one, hardware.devices)] * count
    return [ReplicaPlan(one, hardware.devices[at * ranks : (at + 1) * ranks]) for at in range(count)]


def num_engines(plan: Plan) -> int:
    """Engines inside the one server of this plan, each with `max_num_seqs` of its own: vLLM's data parallelism."""
    flags = plan.engine_args
    return int(flags[flags.index(_DATA_PARALLEL) + 1]) if _DATA_PARALLEL in flags else 1


def most_in_ram(plan: Plan, hardware: Hardware) -> int | None:
    """Servers of the plan whose weights beside the cards lie in the RAM together; None where RAM is no bound.

    The RAM of a machine that is only described is not known.
    """
    held = plan.placement.offloaded_bytes.get("cpu", 0)
    return None if hardware.is_described or not held else hardware.ram_for_models_bytes // held


def why_not_in_ram(plan: Plan, hardware: Hardware, count: int, flag: str = "--replicas") -> str | None:
    """Why `count` servers of the plan have too little RAM; None where they have enough."""
    most, held = most_in_ram(plan, hardware), plan.placement.offloaded_bytes.get("cpu", 0)
    if most is None or count <= most:
        return None
    return (
        f"{flag} {count}: each replica holds {format_bytes(held)} of RAM beside its cards, and "
        f"{format_bytes(hardware.ram_for_models_bytes)} are available; {flag} {max(1, most)} is the most"
    )


def as_one(replicas: Sequence[ReplicaPlan]) -> Plan:
    """All replicas as a plan that is shown: the first one's, over all devices, with a note that says so."""
    first = replicas[0].plan
    if len(replicas) == 1:
        return first
    sharers = replicas[0].num_sharers
    shared = f"; {sharers} of them share {'the CPU' if first.on_cpu else 'a card'}" if sharers > 1 else ""
    note = f"{len(replicas)} replicas, each a server with this plan{shared}"
    devices = tuple(device for one in replicas[::sharers] for device in one.plan.devices)
    totals = Counter[str]()
    for one in replicas:
        totals.update(one.plan.placement.offloaded_bytes)
    placement = replace(first.placement, offloaded_bytes=dict(totals))
    return replace(first, devices=devices, placement=placement, notes=(*first.notes, note))


def _data_parallel_size(request: PlanRequest) -> int:
    try:
        return option_value(request, "data_parallel_size") or 1
    except AttributeError:  # no engine that is installed has it
        return 1


def _spread_experts(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, engines: int, count: NumReplicas, flag: str
) -> ReplicaPlan:
    """One server of several engines: each is planned with whole experts on its cards, which is an upper bound."""
    if count not in (1, AUTO):
        raise UsageError(f"{flag} {count} and {_DATA_PARALLEL} {engines}: one or the other; leave one of them out")
    each = len(hardware.devices) // engines
    if not each:
        raise UsageError(
            f"{_DATA_PARALLEL} {engines} takes at least {engines} cards, and there are {len(hardware.devices)}"
        )
    plan = check_fits(make_plan(checkpoint, replace(hardware, devices=hardware.devices[:each]), request))
    note = f"{engines} engines in one server; each is counted with all experts, which is an upper bound"
    cards = hardware.devices[: engines * len(plan.devices)]
    return ReplicaPlan(replace(plan, devices=plan.devices * engines, notes=(*plan.notes, note)), cards)


def _as_many(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, flag: str) -> list[ReplicaPlan]:
    fixed = _fixed_ranks(request)
    cards = len(hardware.devices)
    whole = most_tokens(checkpoint, hardware, request)
    tried: Sequence[int] = [fixed] if fixed else [one for one in _RANKS if one <= cards]
    is_whole: Callable[[Plan], bool] = lambda plan: plan.workload.max_model_len >= whole  # noqa: E731 - a condition
    for good in (is_whole, lambda plan: True):
        for ranks in tried:
            wanted = _with_ranks(request, ranks)
            plan = make_plan(checkpoint, replace(hardware, devices=hardware.devices[:ranks]), wanted)
            if plan.fits and good(plan):
                most = most_in_ram(plan, hardware)
                count = cards // ranks if most is None else min(cards // ranks, most)
                return _fitting(checkpoint, hardware, wanted, count, ranks, flag)
    return _fitting(checkpoint, hardware, request, 1, cards, flag)


def _fitting(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, count: int, ranks: int, flag: str
) -> list[ReplicaPlan]:
    shares = share_out(hardware, count, ranks)
    plans = {share: make_plan(checkpoint, share, request) for share in dict.fromkeys(shares)}
    for share, plan in plans.items():
        if count == 1:
            check_fits(plan)
        if not plan.fits:
            raise DoesNotFit(_why_not(plan, share, count, flag), plan.short_bytes)
        if count > 1 and (why := why_not_in_ram(plan, hardware, count, flag)):
            raise DoesNotFit(why)
    cores = shares[0].cpu_cores if count > 1 and not ranks else None
    groups = max(1, len(hardware.devices) // ranks) if ranks else 1
    sharers = -(-count // groups)
    return [ReplicaPlan(plans[share], _own(hardware, share), cores, sharers) for share in shares]


def _own(hardware: Hardware, share: Hardware) -> tuple[Device, ...]:
    """The cards of a share as the machine has them."""
    by_uuid = {card.uuid: card for card in hardware.devices if card.uuid}
    return tuple(by_uuid.get(card.uuid, card) for card in share.devices)


def _why_not(plan: Plan, share: Hardware, count: int, flag: str) -> str:
    each = share.devices[0].available_bytes if share.devices else share.ram_available_bytes
    where = f"of {share.devices[0].name}" if share.devices else "of RAM"
    return (
        f"{flag} {count}: each replica has {format_bytes(each)} {where}, which is {format_bytes(plan.short_bytes)} too "
        f"little; lower {flag}, --max-model-len or --quant"
    )


def _fixed_ranks(request: PlanRequest) -> int | None:
    tensor, stages = (option_value(request, f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    return (tensor or 1) * (stages or 1) if tensor or stages else None


def _with_ranks(request: PlanRequest, ranks: int) -> PlanRequest:
    """TP fixed to the cards of a replica, where the request does not fix a layout itself."""
    if _fixed_ranks(request) or ranks == 1:
        return request
    return changed_request(request, tensor_parallel_size=ranks)


def share_out(hardware: Hardware, count: int, ranks: int) -> list[Hardware]:
    """The machine as each of `count` replicas may take it; `ranks` cards each, 0: none, they compute on the CPU."""
    if count == 1:
        return [hardware]
    if not ranks:
        cores = max(1, hardware.cpu_cores // count)
        # What the service's other processes hold is taken once, and not from each part.
        ram = hardware.ram_for_models_bytes // count + hardware.host_bytes
        return [replace(hardware, devices=(), ram_available_bytes=ram, cpu_cores=cores)] * count
    groups = [hardware.devices[at : at + ranks] for at in range(0, len(hardware.devices) - ranks + 1, ranks)]
    sharers = [len(range(group, count, len(groups))) for group in range(len(groups))]
    return [
        replace(hardware, devices=tuple(_part(card, sharers[at % len(groups)]) for card in groups[at % len(groups)]))
        for at in range(count)
    ]


def _part(card: Device, sharers: int) -> Device:
    """A card of which the other sharers hold their parts."""
    others = card.available_bytes - card.available_bytes // sharers
    return replace(card, used_by_others_bytes=card.used_by_others_bytes + others)
