"""Which engine serves, and the plan for it; what can be planned but not served is refused here, with a way out."""

from __future__ import annotations

from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.detect.engines import Packages, why_not_served, why_not_vllm
from qserve.engine.launch import engine_launch
from qserve.errors import DoesNotFit, UsageError
from qserve.planner import Plan, make_plan
from qserve.planner.engine import own_engines
from qserve.planner.request import PlanRequest

__all__ = ["check_fits", "check_length", "choose_engine"]

_FASTER_START = "without a card the transformers engine starts in seconds; --engine vllm takes vLLM's CPU build"


def choose_engine(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> tuple[PlanRequest, str]:
    """The request with its engine fixed, and why it is this one.

    --engine is taken at its word; else vLLM where there is a card and it can serve the plan, transformers everywhere
    else. Raises UsageError for what vLLM was asked for and can't do here, with what would work.
    """
    check_length(checkpoint, request)
    if request.engine is not None and request.engine not in {one.name for one in own_engines()}:
        engine_launch(request.engine)  # raises for one that is not registered, or only plans
        return request, f"--engine {request.engine}"
    if request.engine == "transformers" or (request.engine is None and not hardware.devices):
        reason = "--engine transformers" if request.engine else _FASTER_START
        return replace(request, engine="transformers"), reason
    obstacle = why_not_vllm(checkpoint, hardware, request, packages)
    if obstacle is None:
        # Each release sizes its cache in its own way: planned for the one that is installed.
        for_vllm = replace(request, engine="vllm", engine_version=request.engine_version or packages.vllm)
        obstacle = _why_not_planned(checkpoint, hardware, for_vllm, packages)
        if obstacle is None:
            return for_vllm, "--engine vllm" if request.engine else "it serves what was asked for"
    if request.engine == "vllm":
        raise UsageError(f"--engine vllm: {obstacle}")
    return replace(request, engine="transformers"), f"not vllm, because {obstacle}"


def _why_not_planned(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, packages: Packages
) -> str | None:
    """What stands against this request once it is planned: a quantization that vLLM has not, a plugin that lacks."""
    try:
        return why_not_served(make_plan(checkpoint, hardware, request), packages)
    except UsageError as error:
        return str(error)


def check_fits(plan: Plan) -> Plan:
    """`plan`, if it fits. Raises DoesNotFit with the ways out."""
    if plan.fits:
        return plan
    ways = "".join(f"\n  - {way.change} ({way.cost}): {way.command}" for way in plan.suggestions)
    raise DoesNotFit(f"{plan.why_not}" + (f". What would fit:{ways}" if ways else ""))


def check_length(checkpoint: Checkpoint, request: PlanRequest) -> None:
    """Refuse to serve beyond the positions that the model was made for: the plan would fit, the answers not."""
    asked, known = request.max_model_len, checkpoint.spec.max_position_embeddings
    if asked and asked > known:
        raise UsageError(
            f"--max-model-len {asked} is more than the {known} positions that {checkpoint.id} was made for "
            f"(max_position_embeddings in its config.json); beyond them its answers are noise. At most {known} works"
        )
