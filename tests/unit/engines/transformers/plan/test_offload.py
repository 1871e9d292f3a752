"""Steps with weights in RAM: the longer of computing and the bus where layers are streamed, else their sum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.engines.transformers.plan.offloaded_weights import NOTHING_OFFLOADED, OffloadedWeights
from qserve.engines.transformers.plan.steps import TransformersSteps
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.planner.request import PlanRequest
from qserve.planner.speed.calibration import NOTHING_MEASURED
from qserve.planner.speed.estimate import replica_of
from qserve.planner.speed.terms.card import card_of
from qserve.service.layout.one_stream import with_one_stream
from qserve.units import GIB

CARD = parse_gpu("rtx-4090")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def plan_of(model: str, **fixed: Any) -> Plan:
    machine = Hardware(CARD, 512 * GIB, 500 * GIB, 64)
    return make_plan(resolve(model), machine, plan_request(**{"engine": "transformers", "quant": "bf16", **fixed}))


def test_the_bus_decides_where_most_of_a_model_is_in_ram() -> None:
    plan = plan_of("Qwen/Qwen3-32B", offload="cpu")
    offloaded = OffloadedWeights.of(plan, card_of(CARD[0]))
    assert offloaded.is_streamed
    assert offloaded.copying_s == pytest.approx(plan.placement.offloaded_bytes["cpu"] / 24e9)
    step = replica_of(plan, resolve("Qwen/Qwen3-32B").spec, CARD[0]).steps.decode_s(1, 1000)
    assert step == pytest.approx(offloaded.copying_s)


@pytest.mark.parametrize(
    ("fixed", "launches"),
    [
        ({}, 60),  # captured
        ({"engine_version": "5.18.0"}, None),  # the library's steps
        ({"offload": "cpu", "max_memory": "0=14GiB,cpu=64GiB"}, 59 + 36 * 13),  # streamed, so not captured
    ],
)
def test_decoding_steps_of_our_own_launch_less(fixed: dict[str, Any], launches: int | None) -> None:
    spec = resolve("Qwen/Qwen3-8B").spec
    steps = replica_of(plan_of("Qwen/Qwen3-8B", **fixed), spec, CARD[0]).steps
    assert isinstance(steps, TransformersSteps)
    assert steps.decode_launches == launches
    if not fixed:
        assert steps.decode_s(1, 1000) == steps.kernels.decode_s(1, 1000) < steps.mixed_s(0, 0, [(16, 0)])
    assert steps.decode_s(1, 1000) >= 15.2e9 / 1008e9, "no faster than its bytes"


def test_experts_in_fp8_launch_as_much_for_any_step() -> None:
    """By grouped products of ours; the library's loop runs over all of them, whatever a step asks for."""
    spec = resolve("Qwen/Qwen3-30B-A3B-FP8").spec
    ours, theirs = (
        replica_of(plan_of("Qwen/Qwen3-30B-A3B-FP8", quant="fp8", engine_version=version), spec, CARD[0]).steps
        for version in (None, "4.51.3")
    )
    assert isinstance(ours, TransformersSteps) and isinstance(theirs, TransformersSteps)
    launches_s = 48 * (ours.layer_us + 6 * ours.launch_us) / 1e6
    assert ours.decode_s(1, 100) == ours.decode_s(4, 100) == pytest.approx(launches_s)
    assert theirs.decode_s(1, 100) == theirs.decode_s(4, 100) > 40 * ours.decode_s(1, 100)


def test_what_is_not_streamed_adds_to_the_step() -> None:
    one = OffloadedWeights(ram_bytes=10, bus_bytes_per_s=10.0, is_streamed=True)
    assert (one.beside(0.4), one.beside(3.0)) == (1.0, 3.0)
    assert replace(one, is_streamed=False).beside(0.4) == pytest.approx(1.4)
    assert replace(one, disk_bytes=4, disk_bytes_per_s=2.0, is_streamed=False).beside(0.0) == pytest.approx(3.0)


def test_a_plan_on_the_card_alone_has_none_and_explains_where_there_is_some() -> None:
    whole, split = plan_of("Qwen/Qwen3-8B"), plan_of("Qwen/Qwen3-14B", offload="cpu")
    assert OffloadedWeights.of(whole, card_of(CARD[0])) == NOTHING_OFFLOADED
    hardware = Hardware(CARD, 512 * GIB, 500 * GIB, 64)
    timed = with_one_stream(split, resolve("Qwen/Qwen3-14B"), hardware, PlanRequest(), NOTHING_MEASURED)
    told = (timed.speed or {})["explained"]
    assert any("GB from RAM at 24 GB/s" in line and "one layer ahead" in line for line in told)
