"""Many models of one service, of which as many are in memory at a time as the plan has room for."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qserve.core.hardware import Hardware
from qserve.errors import DoesNotFit, UsageError
from qserve.planner.engine import engine_named
from qserve.planner.plan import Plan
from qserve.planner.residency.footprint import RAM, Budget, Footprint
from qserve.planner.residency.schedule import Rules
from qserve.planner.residency.starting import starting_bytes
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import ServiceRequest
from qserve.units import MIB, format_bytes

__all__ = [
    "STANDBY_BYTES",
    "Keeping",
    "ResidentPlan",
    "ResidentRequest",
    "ResidentsPlan",
    "ResidentsRequest",
    "plan_residents",
]

# Of a model whose cache is not given: one request of full length, and up to four where that is no more tokens.
_FULL_REQUESTS, _USUAL_TOKENS = 4, 32768
STANDBY_BYTES = 290 * MIB
"""Of a process that has imported torch 2.13 for the CPU and transformers 5.19 and nothing else: 276 MiB of its own."""
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True)
class Keeping:
    """How long a model stays in memory.

    Attributes:
        is_pinned: it never leaves for another.
        ttl_s: it leaves when it was idle for so long; None: only for another.
        priority: weighs its waits and its worth; 1 is usual.
        preload: it is loaded when the service starts, where there is room.
    """

    is_pinned: bool = False
    ttl_s: float | None = None
    priority: float = 1.0
    preload: bool = True


@dataclass(frozen=True)
class ResidentRequest:
    """One model: `service` names it alone."""

    service: ServiceRequest
    keeping: Keeping = field(default_factory=Keeping)

    @property
    def model(self) -> str:
        """As it was named."""
        reward = self.service.reward
        return self.service.model or (reward.checkpoint if reward is not None else "")


@dataclass(frozen=True)
class ResidentsRequest:
    """All models, in the order of their file.

    Attributes:
        rules: by which they take turns.
        wait_s: how long a request may wait for its model.
        most_bytes: what they may take together of the RAM, and of each card; None: all that is there.
    """

    models: tuple[ResidentRequest, ...]
    rules: Rules = field(default_factory=Rules)
    wait_s: float = 600.0
    most_bytes: int | None = None


@dataclass(frozen=True)
class ResidentPlan:
    """One of the models. `group` names its worker among all of the service; `places` are those of its cards."""

    group: str
    service: ServicePlan
    footprint: Footprint
    keeping: Keeping
    places: tuple[int, ...] = ()

    @property
    def plan(self) -> Plan:
        """How it runs."""
        (model,) = self.service.models
        return model.replicas[0].plan


@dataclass(frozen=True)
class ResidentsPlan:
    """The models on one budget. `standby`: the module of the workers for which a process stands by, which holds
    `STANDBY_BYTES` of the RAM beside the budget; "": there is no room for one, or nothing that it could become.
    """

    models: tuple[ResidentPlan, ...]
    budget: Budget
    rules: Rules
    wait_s: float
    standby: str = ""

    @property
    def footprints(self) -> tuple[Footprint, ...]:
        """Of all models, in their order."""
        return tuple(one.footprint for one in self.models)

    @property
    def fits(self) -> bool:
        """Whether each model can be loaded, beside those that never leave."""
        try:
            self.check_fits()
        except DoesNotFit:
            return False
        return True

    def check_fits(self) -> None:
        """Raises DoesNotFit for a model that can never be loaded: alone, or beside those that never leave."""
        for one in self.models:
            one.service.check_fits()
        pinned = [one for one in self.models if one.keeping.is_pinned]
        for one in self.models:
            others = [other.footprint for other in pinned if other is not one]
            if short := self.budget.short_together([one.footprint, *others]):
                beside = f" beside {' and '.join(other.name for other in others)}, which never leaves" if others else ""
                raise DoesNotFit(
                    f"{one.footprint.name} can't be loaded{beside}: {format_bytes(short)} are missing while it starts; "
                    "lower max_model_len or max_num_seqs of one of them, choose a smaller quant, or leave pin out",
                    short,
                )

    def to_json(self) -> dict[str, Any]:
        """The models' plans by name, what they take, and the budget, in bytes."""
        return {
            "budget_bytes": dict(self.budget.pools),
            "standby_bytes": STANDBY_BYTES if self.standby else 0,
            "models": [
                {
                    "name": one.group,
                    "pin": one.keeping.is_pinned,
                    "ttl_s": one.keeping.ttl_s,
                    "priority": one.keeping.priority,
                    "rest_bytes": dict(one.footprint.rest),
                    "starting_bytes": dict(one.footprint.starting),
                    "load_s": one.footprint.load_s,
                    "plan": one.service.to_json(),
                }
                for one in self.models
            ],
        }


def plan_residents(request: ResidentsRequest, machine: Machine, knowledge: Knowledge, folder: Path) -> ResidentsPlan:
    """Each model as if it had the machine for itself, with a cache for its own requests alone, and all on one budget.
    With several cards, models that fit on one are spread over them.

    `folder` takes files that a service needs beside its checkpoints. Raises as `plan_service` does.
    """
    first = request.models[0].service
    hardware = machine.with_service(first.has_ui, first.num_gateways, first.min_free_bytes)
    planned: list[ResidentPlan] = []
    taken: Counter[str] = Counter()
    for one in request.models:
        group = _group_of(one, {other.group for other in planned})
        own = folder / group
        own.mkdir()
        service, places = _placed(one.service, machine, knowledge, own, taken)
        footprint = _footprint(group, service, places, knowledge)
        taken.update(footprint.rest)
        planned.append(ResidentPlan(group, service, footprint, one.keeping, tuple(places)))
    budget = budget_of(hardware, request.most_bytes)
    standby = _standby(planned, budget)
    if standby:
        budget = _beside_standby(budget)
    return ResidentsPlan(tuple(planned), budget, request.rules, request.wait_s, standby)


def _standby(planned: Sequence[ResidentPlan], budget: Budget) -> str:
    """Where models take turns, and each still has room alone: without it a start takes seconds longer, no more."""
    modules = [engine_named(one.plan.engine).standby for one in planned]
    less, footprints = _beside_standby(budget), [one.footprint for one in planned]
    take_turns = bool(less.short_together(footprints))
    has_room = not any(less.short_together([one]) > 0 >= budget.short_together([one]) for one in footprints)
    return next(filter(None, modules), "") if take_turns and has_room else ""


def _beside_standby(budget: Budget) -> Budget:
    return Budget({**budget.pools, RAM: max(0, budget.pools[RAM] - STANDBY_BYTES)})


def budget_of(hardware: Hardware, most_bytes: int | None) -> Budget:
    """What models may take of the RAM and of each card, `most_bytes` of each."""
    pools = {RAM: hardware.ram_for_models_bytes}
    pools |= {_pool(place): card.available_bytes for place, card in enumerate(hardware.devices)}
    return Budget({name: size if most_bytes is None else min(size, most_bytes) for name, size in pools.items()})


def _pool(place: int) -> str:
    return f"card {place}"


def _group_of(one: ResidentRequest, others: Collection[str]) -> str:
    """A short name for its worker, its log and its metrics: of what it is called in requests."""
    reward = one.service.reward
    names = one.service.names or (reward.names if reward is not None else ())
    plain = _NOT_IN_A_NAME.sub("-", (names or (one.model.rstrip("/"),))[0].rpartition("/")[2].lower()).strip("-.")
    plain = plain or ("chat" if reward is None else reward.role)
    numbered = (plain if not count else f"{plain}-{count + 1}" for count in itertools.count())
    return next(name for name in numbered if name not in others)


def _placed(
    request: ServiceRequest, machine: Machine, knowledge: Knowledge, folder: Path, taken: Counter[str]
) -> tuple[ServicePlan, Sequence[int]]:
    """Its plan, and the places of its cards: one where it fits on one, that with most left; else all."""
    cards = machine.hardware.devices
    places = range(len(cards))
    if len(cards) > 1:
        for place in sorted(places, key=lambda at: taken[_pool(at)] - cards[at].available_bytes):
            alone = replace(machine, hardware=replace(machine.hardware, devices=(cards[place],)))
            with suppress(DoesNotFit, UsageError):  # said by the plan over all cards
                service = _with_own_cache(request, alone, knowledge, folder)
                if service.fits and not service.models[0].whole.on_cpu:
                    return service, [place]
    return _with_own_cache(request, machine, knowledge, folder), places


def _with_own_cache(request: ServiceRequest, machine: Machine, knowledge: Knowledge, folder: Path) -> ServicePlan:
    """Planned with a cache of `_most_tokens` where none is given: alone on a card it would take all that is left."""
    service = plan_service(request, machine, knowledge, folder)
    (model,) = service.models
    plan = model.whole
    tokens = _most_tokens(plan)
    if request.model is None or request.plan.kv_cache_memory_bytes or not plan.fits or plan.kv_cache_tokens <= tokens:
        return service
    least = -(-plan.placement.kv_cache_memory_bytes * tokens // plan.kv_cache_tokens)
    rounded = -(-least // MIB) * MIB
    own = replace(request, plan=replace(request.plan, kv_cache_memory_bytes=rounded))
    return plan_service(own, machine, knowledge, folder)


def _most_tokens(plan: Plan) -> int:
    limits = plan.workload
    full = min(_FULL_REQUESTS, limits.max_num_seqs) * limits.max_model_len
    return max(limits.max_model_len, min(full, _USUAL_TOKENS))


def _footprint(group: str, service: ServicePlan, places: Sequence[int], knowledge: Knowledge) -> Footprint:
    (model,) = service.models
    plan = model.whole
    in_ram = plan.placement.offloaded_bytes.get("cpu", 0)
    if plan.on_cpu:
        rest = {RAM: sum(device.held_bytes for device in plan.devices)}
    else:
        rest = {_pool(place): device.held_bytes for place, device in zip(places, plan.devices, strict=False)}
        rest |= {RAM: in_ram} if in_ram else {}
    learned = knowledge.loads(plan)
    extra = max(starting_bytes(plan, model.checkpoint), 0 if learned is None else learned.starting_bytes)
    load_s = None if learned is None else learned.load_s
    return Footprint(group, rest, {pool: extra for pool in rest if extra}, load_s)
