"""What an engine is to the planner, and the registry of engines.

An engine is a package that exports one `Engine` and registers it as an entry point of the group `qserve.engines`
(`echo = "echo_engine:ENGINE"`). qserve's own two are the lines of `_OWN`. Its planner imports nothing heavy; what
serves it is named by a dotted string that only `qserve up` loads.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.errors import UsageError
from qserve.planner.candidate import Candidate
from qserve.planner.changes import ChangeGroup
from qserve.planner.options import EngineOptions, options_of
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.search.stretch import overrides_of
from qserve.planner.speed.simulated import Steps

__all__ = [
    "GROUP",
    "PLAN_ONLY",
    "SCORER",
    "Engine",
    "EnginePlanner",
    "changed_request",
    "engine_for",
    "engine_named",
    "engine_names",
    "engines",
    "load_attribute",
    "most_tokens",
    "option_kinds",
    "option_value",
    "own_engines",
    "plan_request",
    "reward_engine_names",
    "with_same_rounding",
]

GROUP = "qserve.engines"

# In the order in which a plan without --engine tries them.
_OWN = {"vllm": "qserve.engines.vllm.engine:ENGINE", "transformers": "qserve.engines.transformers.engine:ENGINE"}


PLAN_ONLY = "plan-only"
"""The engine of cards that none of the others runs on. It serves nothing, and no --engine names it."""
_PLAN_ONLY = "qserve.engines.plan_only.engine:ENGINE"

SCORER = "transformers"
"""The engine that scores with a reward model where nobody names one."""


class EnginePlanner(Protocol):
    """What planning needs to know of an engine. Each method is pure; those with a body may be left as they are."""

    title: str
    """As it stands in a sentence: vLLM, the transformers engine."""
    default_version: str
    """The release that is planned for where nobody names one."""
    options: type[EngineOptions] | None
    """The options that it alone reads."""
    term_names: tuple[str, ...]
    """Every term that a plan of it may hold, in the order of --explain."""
    profiles_memory: bool = False
    """It measures a whole step before it serves: its figure of activations is exact, and what its processes hold beyond
    all terms is runtime that the plan lacks."""

    reads_overrides: bool = False
    """It serves `Plan.overrides`; another one has the positions of config.json and no more."""

    def supports(self, hardware: Hardware) -> bool:
        """Whether a plan without --engine may take it on this machine."""
        return False

    def why_no_kernels(self, devices: Sequence[Device], release: str | None) -> str | None:
        """Half a sentence on a card that the release's wheels have no kernels for; None where they have."""
        return None

    def refuse(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
        """Raises UsageError for a request that the engine can't serve, whatever fits."""

    def as_served(self, checkpoint: Checkpoint, request: PlanRequest) -> Checkpoint:
        """The checkpoint as the request makes the engine read it, with the positions that its release derives."""
        return checkpoint.overridden(overrides_of(checkpoint, request)) if self.reads_overrides else checkpoint

    def with_engine_args(self, request: PlanRequest, engine_args: str) -> PlanRequest:
        """The request with what the arguments of its server ask for and the plan counts; flags of qserve's own win.

        Raises UsageError for what changes memory and is not counted.
        """
        return request

    def chat_template_in(self, engine_args: Sequence[str]) -> str | None:
        """The chat template that the arguments of its server name, a file or a text; None where they name none."""
        return None

    def candidates(self, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Iterator[Candidate]:
        """Ways to run the model, best first. Raises UsageError where there is none, with what would work."""
        ...

    def fit(self, candidate: Candidate, cache_tokens: int) -> Plan:
        """The best workload of a candidate that leaves `cache_tokens` of KV cache; `fits` is False where none does.

        What the request fixes is not touched. A length that the request fixes replaces `cache_tokens`.
        """
        ...

    def flags(self, candidate: Candidate, plan: Plan) -> tuple[str, ...]:
        """Arguments of the engine's command line that put the plan into effect."""
        return ()

    def notes(self, candidate: Candidate, plan: Plan) -> Iterable[str]:
        """What a user should know beside the figures, the most important first."""
        return ()

    def explanations(self, candidate: Candidate, plan: Plan) -> Iterable[str]:
        """What people get wrong about this engine's memory, with the plan's numbers."""
        return ()

    def suggestions(self, candidate: Candidate) -> Iterable[ChangeGroup]:
        """Changes of its own options, or to itself, after which a plan that was refused may fit.

        Asked of every engine, for candidates of others as well.
        """
        return ()

    def on_other_cards(self, request: PlanRequest) -> PlanRequest:
        """The request without what was fixed for the cards that were there."""
        return request

    def for_scoring(self, request: PlanRequest, hardware: Hardware) -> PlanRequest:
        """The request of a reward model, with what the engine does otherwise where it only scores."""
        return request

    def with_scoring_cache(self, request: PlanRequest, planned: Callable[[PlanRequest], Plan]) -> PlanRequest:
        """The request with a KV cache that is enough for texts that are read once; `planned` makes its plan."""
        return request

    def card_steps(self, plan: Plan, spec: ModelSpec, device: Device) -> Steps | None:
        """What the steps of a plan take on cards of that kind; None: what configs/speed.toml has for the engine."""
        return None

    def replayed_tokens(self, plan: Plan, device: Device) -> int | None:
        """Tokens of the largest step that a plan's server replays from CUDA graphs; None: as configs/speed.toml has
        it for the engine."""
        return None

    def unbounded(self, plan: Plan, device: Device, request: PlanRequest) -> Plan:
        """A plan that does not fit, with the limits that the engine would take if memory did not matter."""
        return plan

    def loads(self, scheme: str) -> bool:
        """Whether a checkpoint that is stored so is worth taking in the place of the 16-bit one."""
        return False

    def runs_stored(self, scheme: str, device: Device, cpu: CpuFeatures) -> bool:
        """Whether it has kernels on `device` for a checkpoint that is stored so."""
        return True

    def quantizes(self, scheme: str, device: Device) -> bool:
        """Whether it can make `scheme` of 16-bit weights while loading them, on devices of that kind."""
        return False


@dataclass(frozen=True)
class Engine:
    """One engine. What only some commands need is named as "package.module:attribute", and loaded by those alone.

    Attributes:
        name: what --engine takes.
        planner: what planning needs to know of it.
        launch: what serves it, a `qserve.worker.launch.EngineLaunch`; empty for one that only plans.
        checks: what stands against it on a machine, a `qserve.detect.engine_checks.EngineChecks`; empty: nothing.
        reward: how it scores with reward models, a `qserve.reward.engines.RewardEngine`; empty: it does not.
        wire: how the gateway reads its requests and errors, a `qserve.worker.wire.EngineWire`; empty: by qserve's own
            schemas, which its worker takes then.
        standby: the module of its workers, which a process that stands by may become (`qserve.worker.standby`).
    """

    name: str
    planner: EnginePlanner
    launch: str = ""
    checks: str = ""
    reward: str = ""
    wire: str = ""
    standby: str = ""


def own_engines() -> tuple[Engine, ...]:
    """The engines that come with qserve."""
    return tuple(map(engine_named, _OWN))


def _is_group_named() -> bool:
    """Whether a distribution in a folder of sys.path has engines.

    Mostly none has, and importlib.metadata, which imports a parser of emails, takes a tenth of a plan's time to
    find that.
    """
    for folder in sys.path:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")) and _names_group(Path(entry.path)):
                    return True
    return False


def _names_group(distribution: Path) -> bool:
    try:
        return f"[{GROUP}]" in (distribution / "entry_points.txt").read_text()
    except (OSError, UnicodeDecodeError):
        return False


@cache
def _registered() -> dict[str, str]:
    """Every engine's name and where it is; one of another package does not take the place of qserve's own."""
    if not _is_group_named():
        return _OWN
    from importlib.metadata import entry_points

    return {**{point.name: point.value for point in entry_points(group=GROUP)}, **_OWN}


def engine_names() -> tuple[str, ...]:
    """What --engine takes: qserve's own, then those of other packages."""
    return tuple(dict.fromkeys((*_OWN, *sorted(_registered()))))


def engines() -> tuple[Engine, ...]:
    """All that are registered, qserve's own first."""
    return tuple(map(engine_named, engine_names()))


def reward_engine_names() -> tuple[str, ...]:
    """What --reward-engine takes."""
    return tuple(engine.name for engine in engines() if engine.reward)


@cache
def engine_named(name: str) -> Engine:
    """The engine that is registered as `name`. Raises UsageError that names the registered ones."""
    dotted = _PLAN_ONLY if name == PLAN_ONLY else _OWN.get(name) or _registered().get(name)
    if dotted is None:
        raise UsageError(f"--engine {name!r} is not a registered engine; it takes {', '.join(engine_names())}")
    engine: Engine = load_attribute(dotted)
    return engine


def load_attribute(dotted: str) -> Any:
    """The attribute that "package.module:attribute" names."""
    module, _, attribute = dotted.partition(":")
    return getattr(importlib.import_module(module), attribute)


def engine_for(hardware: Hardware, request: PlanRequest) -> Engine:
    """The engine that was asked for; else the first of qserve's own that suits the machine and reads all options.

    For cards that none of them runs on, the one that only plans. Where none reads them all, the last one is taken,
    which refuses what it does not read.
    """
    if request.engine is not None:
        return engine_named(request.engine)
    if hardware.plan_only is not None:
        return engine_named(PLAN_ONLY)
    suited = [
        engine
        for engine in own_engines()
        if engine.planner.supports(hardware)
        and engine.planner.why_no_kernels(hardware.devices, request.engine_version) is None
    ]
    return next((engine for engine in suited if not _shut_out(engine, suited, request)), suited[-1])


def most_tokens(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> int:
    """Of a sequence: --max-model-len, or the positions that the engine derives from the checkpoint."""
    if request.max_model_len is not None:
        return request.max_model_len
    return engine_for(hardware, request).planner.as_served(checkpoint, request).spec.max_position_embeddings


def _shut_out(engine: Engine, suited: list[Engine], request: PlanRequest) -> bool:
    """Whether an option was given that `engine` does not read, and another suited engine does."""
    others = request.given_to_others(engine.name)
    return any(other.name in others for other in suited)


def plan_request(**values: Any) -> PlanRequest:
    """A request of options by their names: those that all engines share, and those of any engine.

    Raises TypeError for a name that is not an option, UsageError for a value that none takes.
    """
    return changed_request(PlanRequest(), **values)


def changed_request(request: PlanRequest, **values: Any) -> PlanRequest:
    """`request` with the options of those names at other values, whosever they are."""
    own = {name: values.pop(name) for name in tuple(values) if name in PlanRequest.__dataclass_fields__}
    request = replace(request, **own)
    for kind in option_kinds():
        names = {one.name for one in options_of(kind)} & set(values)
        if names:
            request = request.with_options(replace(request.of(kind), **{name: values.pop(name) for name in names}))
    if values:
        raise TypeError(f"{', '.join(values)}: no engine has such an option")
    return request


def with_same_rounding(request: PlanRequest, other: PlanRequest) -> PlanRequest:
    """`request`, of a second model of a service, with activations on a CPU as `other` has them: one flag says it."""
    return changed_request(request, cpu_activations=option_value(other, "cpu_activations"))


def option_value(request: PlanRequest, name: str) -> Any:
    """The value of the option of that name, whosever it is. Raises AttributeError for a name that is not an option."""
    if name in PlanRequest.__dataclass_fields__:
        return getattr(request, name)
    owners = (kind for kind in option_kinds() if name in kind.__dataclass_fields__)
    return getattr(request.of(next(owners, EngineOptions)), name)


def option_kinds() -> tuple[type[EngineOptions], ...]:
    """The options of every engine that has some."""
    return tuple(engine.planner.options for engine in engines() if engine.planner.options is not None)
