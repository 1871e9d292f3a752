"""`--quant auto` on a CPU: int8 in the place of 16 bit where answers come so much sooner that people want it.

A step of few streams takes the time of its bytes, so a model above a billion parameters is slow to read in 16 bit. Its
prompts may be slower in int8, so whole answers are compared. Nothing is given up of a smaller model, nor on a CPU that
nobody measured: whether it has products in int8, and how fast they are, says `qserve doctor --measure`. 4 bit is never
taken for speed: it costs too much of the model's precision.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.schemes import SCHEMES
from qserve.errors import QserveError
from qserve.planner.engine import changed_request
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.calibration import Measured
from qserve.planner.speed.estimate import ONE_STREAM, estimate_speed
from qserve.planner.speed.figures import Figures
from qserve.units import format_ms

__all__ = ["LEAST_GAIN", "MOST_PARAMETERS_IN_16_BIT", "WeighedBySpeed", "weighed_by_speed"]

LEAST_GAIN = 1.3
"""Times that a whole answer of one stream must come sooner."""
MOST_PARAMETERS_IN_16_BIT = 1_000_000_000
_INT8 = "bnb-int8"


@dataclass(frozen=True)
class WeighedBySpeed:
    """The request, for int8 where that is worth it; `why` says so and is "" elsewhere.

    `figures` are what each format would give, "" where nothing was compared.
    """

    request: PlanRequest
    why: str = ""
    figures: str = ""


def weighed_by_speed(
    checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, measured: Measured
) -> WeighedBySpeed:
    """Of a request that leaves the quantization open on a CPU that was measured; any other stays as it is."""
    if not _may_be_int8(checkpoint, hardware, request, measured):
        return WeighedBySpeed(request)
    wanted = changed_request(request, quant=_INT8)
    try:
        plans = make_plan(checkpoint, hardware, request), make_plan(checkpoint, hardware, wanted)
    except QserveError:  # the engine makes no int8; what else is wrong the plan that follows says
        return WeighedBySpeed(request)
    if not all(plan.fits and plan.on_cpu for plan in plans) or SCHEMES[plans[0].quant.scheme].bits < 16:
        return WeighedBySpeed(request)
    before, after = (_one_stream(plan, checkpoint, hardware, measured) for plan in plans)
    scheme = plans[0].quant.scheme
    figures = (
        f"Formats on this CPU, for {ONE_STREAM.input_tokens:,} + {ONE_STREAM.output_tokens} tokens: "
        f"{_in_words(scheme, before)}; {_in_words(_INT8, after)}"
    )
    times = before.e2e_ms.mean / after.e2e_ms.mean
    if times < LEAST_GAIN:
        return WeighedBySpeed(
            request, figures=f"{figures}; {times:.1f} times as fast, chosen from {LEAST_GAIN} on (--quant int8)"
        )
    why = (
        f"Chose {_INT8} over {scheme}, which fits too: answers take {100 / times:.0f} % of the time; --quant {scheme} "
        "keeps 16 bit"
    )
    return WeighedBySpeed(wanted, why, figures)


def _in_words(scheme: str, figures: Figures) -> str:
    return (
        f"{scheme} {format_ms(figures.e2e_ms.mean)} an answer "
        f"(TTFT {format_ms(figures.ttft_ms.mean)}, TPOT {format_ms(figures.tpot_ms.mean)})"
    )


def _may_be_int8(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest, measured: Measured) -> bool:
    """A large dense language model in 16 bit on a CPU that has products in int8, with nothing fixed by the user."""
    spec, packages = checkpoint.spec, hardware.packages
    is_open = request.quant == "auto" and request.dtype in (None, "auto")
    is_dense = spec.quantization is None and spec.moe is None and spec.linear_attention is None
    has_products = measured.cpu is not None and "int8" in dict(measured.cpu.coded_ps)
    return (
        is_open
        and is_dense
        and has_products
        and not hardware.devices
        and spec.head.kind != "score"
        and checkpoint.parameters > MOST_PARAMETERS_IN_16_BIT
        and (packages is None or "bitsandbytes" in packages)
    )


def _one_stream(plan: Plan, checkpoint: Checkpoint, hardware: Hardware, measured: Measured) -> Figures:
    """1,000 + 300 tokens by the CPU's rates alone: what one of two quantizations has learned is not the other's."""
    rates = Measured(cpu=measured.cpu)
    return estimate_speed(plan, checkpoint.spec, hardware.cpu_device, None, measured=rates).figures
