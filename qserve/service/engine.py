"""Chooses the engine of a chat model, and tells why the one that was asked for can't serve it on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.planner import make_plan
from qserve.planner.engine import Engine, engine_named, own_engines
from qserve.planner.request import PlanRequest
from qserve.planner.search.refusals import refuse_length

if TYPE_CHECKING:
    from qserve.detect.packages import Packages

__all__ = ["ChosenEngine", "choose_engine"]

_FASTER_START = "it starts fastest on a CPU; --engine vllm uses vLLM's CPU build"


@dataclass(frozen=True)
class ChosenEngine:
    """The request with its engine fixed, and why it is this one; `passed_over`: why not the engine that is preferred.

    `obstacle` is why the engine that was asked for by name can't serve the request as it is installed; "" where it can.
    """

    request: PlanRequest
    why: str = ""
    obstacle: str = ""
    passed_over: str = ""


def choose_engine(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages | None
) -> ChosenEngine:
    """--engine is taken at its word; else the first of qserve's own that suits the machine and can serve the plan.

    `packages` None: it is not known what is installed, and the planner chooses; as it does for cards that are planned
    for only. Raises UsageError for a name that is
    not registered or only plans, and for a length that no engine has.
    """
    if packages is None or hardware.plan_only is not None:
        return ChosenEngine(request)
    if request.engine is not None:
        return _named(request.engine, checkpoint, hardware, request, packages)
    *preferred, last = (engine for engine in own_engines() if engine.planner.supports(hardware))
    reasons = []
    for engine in preferred:
        chosen, obstacle = _on(engine, checkpoint, hardware, request, packages)
        if obstacle is None:
            return ChosenEngine(chosen, "the default for a card")
        reasons.append(f"not {engine.name}, because {obstacle}")
    refuse_length(last, last.planner.as_served(checkpoint, request), request)
    passed_over = "; ".join(reasons)
    return ChosenEngine(replace(request, engine=last.name), passed_over or _FASTER_START, passed_over=passed_over)


def _named(
    name: str, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> ChosenEngine:
    engine = engine_named(name)
    chosen, obstacle = _on(engine, checkpoint, hardware, request, packages)
    if not engine.launch:
        obstacle = "this engine can't serve; it is for `qserve plan` only"
    return ChosenEngine(chosen, f"--engine {name}", f"--engine {name}: {obstacle}" if obstacle else "")


def _on(
    engine: Engine, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> tuple[PlanRequest, str | None]:
    """The request for `engine` as installed, and the reason why it can't serve it, if any."""
    from qserve.detect.engine_checks import engine_checks  # reads the metadata of packages

    checks = engine_checks(engine.name)
    version = request.engine_version or checks.release(packages)
    request = replace(request, engine=engine.name, engine_version=version)
    obstacle = checks.why_not_asked(checkpoint, hardware, request, packages)
    return request, obstacle or _why_not_planned(checkpoint, hardware, request, packages)


def _why_not_planned(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> str | None:
    """Why the planned request can't be served, if so: a quantization that the engine lacks, a missing package."""
    from qserve.detect.engine_checks import why_not_served

    try:
        return why_not_served(make_plan(checkpoint, hardware, request, with_suggestions=False), packages)
    except UsageError as error:
        return str(error)
