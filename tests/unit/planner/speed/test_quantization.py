"""`--quant auto` on a CPU: int8 where answers come 1.3 times sooner, of a model above a billion parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.core.hardware import CpuFeatures, Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import make_plan, plan_request
from qserve.planner.speed.calibration import NOTHING_MEASURED, Measured
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.service.quantization import weighed_by_speed
from qserve.units import GIB

LAPTOP = Hardware((), 32 * GIB, 24 * GIB, 4, CpuFeatures("a CPU", frozenset({"avx512_bf16", "avx512_vnni"})))
BF16_PS = ((1, 80.0), (4, 84.0), (256, 900.0))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def measured(int8_ps: float, prompts_ps: float = 900.0) -> Measured:
    coded = (("int8", ((1, int8_ps), (4, int8_ps), (256, prompts_ps))),)
    return Measured(cpu=CpuRates(30e9, 400e9, 4, linear_ps=BF16_PS, coded_ps=coded))


def taken(
    model: str = "Qwen/Qwen3-4B", known: Measured | None = None, hardware: Hardware = LAPTOP, **fixed: Any
) -> tuple[str, str]:
    request = plan_request(**fixed)
    found = weighed_by_speed(resolve(model), hardware, request, known or measured(40.0))
    assert (found.request == request) == (not found.why)
    return found.request.quant, found.why


def test_a_large_model_is_served_in_int8() -> None:
    quant, why = taken()
    assert quant == "bnb-int8"
    assert why.startswith("Chose bnb-int8 over bf16, which fits too: answers take ")
    assert "--quant bf16 keeps 16 bit" in why
    plan = make_plan(resolve("Qwen/Qwen3-4B"), LAPTOP, plan_request(quant=quant))
    assert (plan.fits, plan.quant.scheme, plan.quant.in_flight) == (True, "bnb-int8", True)


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "Qwen/Qwen3-0.6B"},  # nothing is given up of a small one
        {"known": measured(66.0)},  # 1.2 times is not worth it
        {"known": measured(200.0)},  # slower than 16 bit
        {"known": measured(40.0, prompts_ps=9000.0)},  # its prompts are
        {"known": NOTHING_MEASURED},
        {"known": Measured(cpu=CpuRates(30e9, 400e9, 4, linear_ps=BF16_PS))},  # has no products in int8
        {"quant": "bf16"},
        {"dtype": "float32"},
        {"engine": "vllm"},
        {"model": "Qwen/Qwen3-4B-AWQ"},
        {"model": "Qwen/Qwen3-30B-A3B"},
        {"hardware": replace(LAPTOP, devices=parse_gpu("rtx-4090"))},
        {"hardware": replace(LAPTOP, packages=frozenset({"torch"}))},
    ],
)
def test_all_else_stays_as_it_was(asked: dict[str, Any]) -> None:
    quant, why = taken(**asked)
    assert (quant, why) == (asked.get("quant", "auto"), "")


def test_what_each_format_would_give_is_told_where_16_bit_is_kept_too() -> None:
    """The answers' times beside each other, the bound, and the flag that takes int8 anyway."""
    checkpoint = resolve("Qwen/Qwen3-4B")
    kept = weighed_by_speed(checkpoint, LAPTOP, plan_request(), measured(66.0))
    assert (kept.request.quant, kept.why) == ("auto", "")
    assert kept.figures.startswith("Formats on this CPU, for 1,000 + 300 tokens: bf16 ")
    assert "; bnb-int8 " in kept.figures
    assert "chosen from 1.3 on (--quant int8)" in kept.figures
    taken_now = weighed_by_speed(checkpoint, LAPTOP, plan_request(), measured(40.0))
    assert "; bnb-int8 " in taken_now.figures
    assert weighed_by_speed(checkpoint, LAPTOP, plan_request(), NOTHING_MEASURED).figures == ""


def test_what_does_not_fit_in_16_bit_is_quantized_for_that_reason() -> None:
    """By quality, as ever."""
    assert taken("Qwen/Qwen3-14B")[1] == ""
