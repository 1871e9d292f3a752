"""Which plans round activations to 8 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import CpuFeatures, Hardware
from qserve.engines.transformers.plan.activations import CpuActivations, activations_of
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB

FAST = CpuFeatures("", frozenset({"avx512_vnni", "avx512vbmi"}))


def plan_for(asked: str, quant: str, cpu: CpuFeatures = FAST) -> Plan:
    machine = replace(Hardware((), 64 * GIB, 64 * GIB, 4), cpu=cpu)
    request = plan_request(engine="transformers", quant=quant, cpu_activations=asked, max_model_len=512)
    return make_plan(resolve("demo"), machine, request)


@pytest.mark.parametrize(
    ("asked", "quant", "found"),
    [
        ("auto", "bnb-int8", "int8"),
        ("auto", "bnb-nf4", "int8"),
        ("auto", "bf16", "exact"),
        ("exact", "bnb-nf4", "exact"),
        ("int8", "bnb-nf4", "int8"),
        ("int8", "bf16", "exact"),
    ],
)
def test_by_what_was_asked_and_by_the_format(asked: str, quant: str, found: str) -> None:
    plan = plan_for(asked, quant)
    assert plan.cpu_activations == found
    assert Plan.from_json(plan.to_json()) == plan


def test_where_the_instructions_are_missing_nothing_is_rounded_and_who_asked_is_told() -> None:
    for asked in ("auto", "int8"):
        plan = plan_for(asked, "bnb-int8", CpuFeatures())
        assert plan.cpu_activations == "exact"
        assert any("--cpu-activations" in note for note in plan.notes) == (asked == "int8")


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"avx2", "fma"}, "int8"),
        ({"avx2", "fma", "avx_vnni"}, "int8"),
        ({"avx512_vnni"}, "int8"),
        ({"avx2"}, "exact"),
        ({"avx512f"}, "exact"),
        ({"asimddp"}, "exact"),
    ],
)
def test_which_processors_multiply_integers(flags: set[str], found: str) -> None:
    assert plan_for("auto", "bnb-nf4", CpuFeatures("", frozenset(flags))).cpu_activations == found


@pytest.mark.parametrize(
    ("asked", "schemes", "found"),
    [
        ("auto", {"w8a8"}, "int8"),
        ("auto", {"w4a16", "fp8"}, "int8"),
        ("auto", {"w8a16"}, "exact"),
        ("auto", {"gptq-int8"}, "exact"),
        ("auto", {"fp8"}, "exact"),
        ("auto", {"w8a8", "w8a16"}, "exact"),
        ("auto", {"gptq-int4", "gptq-int8"}, "exact"),
        ("int8", {"w8a16"}, "int8"),
        ("int8", {"fp8"}, "exact"),
        ("exact", {"w8a8"}, "exact"),
    ],
)
def test_weights_alone_in_8_bits_keep_their_activations_unless_asked(
    asked: CpuActivations, schemes: set[str], found: str
) -> None:
    machine = Hardware((), 64 * GIB, 64 * GIB, 4)
    assert activations_of(asked, frozenset(schemes), "bfloat16", machine.cpu_device, FAST) == found
