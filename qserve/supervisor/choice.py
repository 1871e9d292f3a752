"""Chooses the engine and its plan; refuses what can be planned but not served, with a suggestion."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.detect.engines.checks import engine_checks, why_not_served
from qserve.detect.packages import Packages
from qserve.engine.launch import engine_launch
from qserve.errors import UsageError
from qserve.planner import make_plan
from qserve.planner.engine import Engine, engine_named, own_engines
from qserve.planner.request import PlanRequest
from qserve.planner.search.refusals import refuse_length

__all__ = ["choose_engine"]

_FASTER_START = "it starts fastest on a CPU; --engine vllm uses vLLM's CPU build"


def choose_engine(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> tuple[PlanRequest, str]:
    """The request with its engine fixed, and why it is this one.

    --engine is taken at its word; else the first of qserve's own that suits the machine and can serve the plan. Raises
    UsageError for what an engine was asked for by name and can't do here, with what would work.
    """
    if request.engine is not None:
        engine_launch(request.engine)  # raises for one that is not registered, or only plans
        chosen, obstacle = _on(engine_named(request.engine), checkpoint, hardware, request, packages)
        if obstacle is not None:
            raise UsageError(f"--engine {request.engine}: {obstacle}")
        return chosen, f"--engine {request.engine}"
    *preferred, last = (engine for engine in own_engines() if engine.planner.suits(hardware))
    reasons = []
    for engine in preferred:
        chosen, obstacle = _on(engine, checkpoint, hardware, request, packages)
        if obstacle is None:
            return chosen, "the default for a card"
        reasons.append(f"not {engine.name}, because {obstacle}")
    refuse_length(last, last.planner.as_served(checkpoint, request), request)
    return replace(request, engine=last.name), "; ".join(reasons) or _FASTER_START


def _on(
    engine: Engine, checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> tuple[PlanRequest, str | None]:
    """The request for `engine` as installed, and the reason why it can't serve it, if any."""
    checks = engine_checks(engine.name)
    version = request.engine_version or checks.release(packages)
    request = replace(request, engine=engine.name, engine_version=version)
    obstacle = checks.why_not_asked(checkpoint, hardware, request, packages)
    return request, obstacle or _why_not_planned(checkpoint, hardware, request, packages)


def _why_not_planned(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> str | None:
    """Why the planned request can't be served, if so: a quantization that the engine lacks, a missing package."""
    try:
        return why_not_served(make_plan(checkpoint, hardware, request), packages)
    except UsageError as error:
        return str(error)
