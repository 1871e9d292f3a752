"""What a start measured corrects the next plan: where it holds, as far as it proves, and never what the user fixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner import Plan, PlanRequest, make_plan
from qserve.planner.calibration import Residual
from qserve.planner.engine import changed_request
from qserve.planner.speed.load import Load
from qserve.runs import RunStore
from qserve.runs.residuals import residuals_of
from qserve.service.knowledge import Knowledge
from qserve.service.load import SpeedRequest
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import rank_cards
from qserve.service.request import ServiceRequest
from qserve.units import GIB, MIB
from tests.unit.runs.kept import writer

CARD = hardware_of("rtx-4090")
CPU = replace(hardware_of("none"), ram_total_bytes=32 * GIB, ram_available_bytes=24 * GIB)
VLLM = PlanRequest(engine="vllm", engine_version="0.32.0", quant="bf16")
TRANSFORMERS = PlanRequest(engine="transformers", engine_version="5.19.0")


def planned(request: PlanRequest = VLLM, hardware: Hardware = CARD, model: str = "Qwen/Qwen3-4B") -> Plan:
    return make_plan(resolve(model), hardware, request)


def measured(plan: Plan, **moved: int) -> dict[str, Any]:
    """What a worker that holds what was planned would say, but for these bytes or tokens."""
    (device,) = plan.devices
    names = ("weights_bytes", "activations_bytes", "cuda_graphs_bytes", "kv_cache_bytes")
    document: dict[str, Any] = {name: getattr(device, name) for name in names}
    if plan.engine == "transformers":
        document["runtime_bytes"] = device.runtime_bytes
    document["kv_cache_tokens"] = plan.kv_cache_tokens
    return {**document, **{name: document[name] + by for name, by in moved.items()}}


def learned(plan: Plan, unix_s: float = 1.0, **moved: int) -> tuple[Residual, ...]:
    return tuple(replace(one, unix_s=unix_s) for one in residuals_of(plan, measured(plan, **moved), "run-1"))


def test_the_second_plan_holds_what_the_first_start_measured() -> None:
    first = planned()
    found = measured(first, activations_bytes=-300 * MIB, cuda_graphs_bytes=128 * MIB, weights_bytes=16 * MIB)
    second = planned(replace(VLLM, learned=residuals_of(first, found, "run-1")))
    (device,) = second.devices
    for term in ("weights_bytes", "activations_bytes", "cuda_graphs_bytes"):
        assert getattr(device, term) == found[term], term
    gained = device.kv_cache_bytes - first.devices[0].kv_cache_bytes
    assert gained == (300 - 128 - 16) * MIB, "what the others do not need is the cache's"
    assert second.kv_cache_tokens > first.kv_cache_tokens
    assert any("run-1" in note and "--no-learn" in note for note in second.notes)


def test_only_what_matters_is_told_and_in_one_note() -> None:
    first = planned()
    for bytes_off in (256, -256, 8 * MIB):
        second = planned(replace(VLLM, learned=learned(first, weights_bytes=bytes_off)))
        assert second.corrections and not [note for note in second.notes if "run-1" in note]
    moved = {"activations_bytes": -300 * MIB, "cuda_graphs_bytes": 128 * MIB, "weights_bytes": 256}
    second = planned(replace(VLLM, learned=learned(first, **moved)))
    (note,) = [note for note in second.notes if "run-1" in note]
    assert "activations −300 MiB" in note and "CUDA graphs +128 MiB" in note and "weights" not in note


def test_kv_tokens_follow_the_engine_and_a_fixed_size_stays() -> None:
    fixed = replace(VLLM, kv_cache_memory_bytes=2 * GIB)
    first = planned(fixed)
    moved = -first.kv_cache_tokens // 20
    second = planned(replace(fixed, learned=learned(first, kv_cache_tokens=moved)))
    assert second.kv_cache_tokens == pytest.approx(first.kv_cache_tokens + moved, rel=0.01)
    assert second.placement.kv_cache_memory_bytes == first.placement.kv_cache_memory_bytes == 2 * GIB


def test_what_was_measured_over_other_terms_of_a_cpu_holds_no_more() -> None:
    first = planned(TRANSFORMERS, CPU)
    now = learned(first, runtime_bytes=-100 * MIB)
    older = tuple(replace(one, shape=one.shape.partition(", CPU terms")[0]) for one in now)
    assert planned(replace(TRANSFORMERS, learned=now), CPU).corrections
    assert planned(replace(TRANSFORMERS, learned=older), CPU).corrections == ()


def test_learning_twice_is_not_learning_the_difference() -> None:
    first = planned()
    one = learned(first, activations_bytes=200 * MIB)
    second = planned(replace(VLLM, learned=one))
    again = residuals_of(second, measured(second), "run-2")
    third = planned(replace(VLLM, learned=(*one, *(replace(each, unix_s=2.0) for each in again))))
    assert third.devices == second.devices
    assert third.kv_cache_tokens == second.kv_cache_tokens


def test_the_newest_measurement_counts() -> None:
    first = planned()
    old, new = learned(first, 1.0, weights_bytes=64 * MIB), learned(first, 2.0, weights_bytes=16 * MIB)
    for order in ((*old, *new), (*new, *old)):
        second = planned(replace(VLLM, learned=order))
        assert second.devices[0].weights_bytes - first.devices[0].weights_bytes == 16 * MIB


@pytest.mark.parametrize(
    "other",
    [
        replace(VLLM, engine_version="0.31.0"),
        replace(VLLM, max_num_seqs=7),  # another step
        changed_request(VLLM, enforce_eager=True),
        changed_request(VLLM, kv_cache_dtype="fp8"),  # another shape
    ],
)
def test_what_was_measured_elsewhere_corrects_no_activations(other: PlanRequest) -> None:
    moved = learned(planned(), activations_bytes=300 * MIB)
    assert (
        planned(replace(other, learned=moved)).devices[0].activations_bytes
        == planned(other).devices[0].activations_bytes
    )


def test_another_model_or_card_learns_nothing_of_the_model() -> None:
    moved = learned(planned(), weights_bytes=64 * MIB, activations_bytes=64 * MIB, cuda_graphs_bytes=64 * MIB)
    other = replace(VLLM, learned=moved)
    assert planned(other, model="Qwen/Qwen3-1.7B").devices == planned(model="Qwen/Qwen3-1.7B").devices
    elsewhere = hardware_of("a100-80gb")
    assert planned(other, elsewhere).devices == planned(hardware=elsewhere).devices


def test_activations_that_nobody_asked_for_yet_are_not_taken_away() -> None:
    """The transformers worker tells the highest it saw: before the first request that is next to nothing."""
    first = planned(TRANSFORMERS, CPU, "Qwen/Qwen3-0.6B")
    idle = residuals_of(first, measured(first, activations_bytes=-first.devices[0].activations_bytes + 1), "run-1")
    assert "activations" not in {one.term for one in idle}
    busy = residuals_of(first, measured(first, activations_bytes=50 * MIB), "run-1")
    second = planned(replace(TRANSFORMERS, learned=busy), CPU, "Qwen/Qwen3-0.6B")
    assert second.devices[0].activations_bytes - first.devices[0].activations_bytes == 50 * MIB


def test_the_runtime_of_a_card_holds_for_any_model_on_it_and_of_a_cpu_for_the_same_one() -> None:
    for hardware, holds in ((CARD, True), (CPU, False)):
        first = planned(TRANSFORMERS, hardware, "Qwen/Qwen3-0.6B")
        more = residuals_of(first, measured(first, runtime_bytes=80 * MIB), "run-1")
        other = planned(replace(TRANSFORMERS, learned=more), hardware, "Qwen/Qwen3-1.7B").devices[0].runtime_bytes
        moved = other - planned(TRANSFORMERS, hardware, "Qwen/Qwen3-1.7B").devices[0].runtime_bytes
        assert moved == (80 * MIB if holds else 0)


def test_the_runtime_of_a_cpu_worker_moves_both_ways() -> None:
    first = planned(TRANSFORMERS, CPU, "Qwen/Qwen3-0.6B")
    less = residuals_of(first, measured(first, runtime_bytes=-50 * MIB), "run-1")
    second = planned(replace(TRANSFORMERS, learned=less), CPU, "Qwen/Qwen3-0.6B")
    assert first.devices[0].runtime_bytes - second.devices[0].runtime_bytes == 50 * MIB


def test_a_figure_of_something_else_corrects_nothing() -> None:
    first = planned()
    wild = learned(first, weights_bytes=12 * GIB, kv_cache_tokens=5 * first.kv_cache_tokens)
    assert planned(replace(VLLM, learned=wild)).devices == first.devices


def test_a_plan_with_corrections_is_still_its_json() -> None:
    second = planned(replace(VLLM, learned=learned(planned(), weights_bytes=16 * MIB)))
    assert second.corrections
    assert Plan.from_json(json.loads(json.dumps(second.to_json()))) == second


def known(state: Path, machine: Machine = Machine(CPU, is_here=True), is_off: bool = False) -> Knowledge:  # noqa: B008
    return Knowledge.of(machine, state, is_off=is_off, warn=print)


def test_cards_that_are_ranked_are_not_corrected_by_runs_on_those_that_are_here(tmp_path: Path) -> None:
    first = planned()
    run = writer(tmp_path)
    run.learn("chat", residuals_of(first, measured(first, weights_bytes=400 * MIB), run.run.id))
    run.close(0)
    assert planned(replace(VLLM, learned=known(tmp_path).memory())).corrections
    asked = ServiceRequest("Qwen/Qwen3-4B", VLLM, speed=SpeedRequest(Load(users=2), prices={"rtx-4090": 0.35}))
    taught, untaught = (rank_cards(asked, Machine(CPU, is_here=True), one) for one in (known(tmp_path), Knowledge()))
    assert taught == untaught and taught[0][2].plan.corrections == ()


def test_from_run_to_plan_through_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = planned(TRANSFORMERS, CPU, "Qwen/Qwen3-0.6B")
    run = writer(tmp_path)
    run.learn("chat", residuals_of(first, measured(first, runtime_bytes=-50 * MIB), run.run.id))
    run.learn("chat", residuals_of(first, measured(first, runtime_bytes=-60 * MIB), run.run.id))
    run.close(0)
    assert len({one.term for one in RunStore.open(tmp_path).residuals()}) == len(RunStore.open(tmp_path).residuals())
    second = planned(replace(TRANSFORMERS, learned=known(tmp_path).memory()), CPU, "Qwen/Qwen3-0.6B")
    assert first.devices[0].runtime_bytes - second.devices[0].runtime_bytes == 60 * MIB
    assert known(tmp_path, is_off=True).memory() == ()
    assert known(tmp_path, Machine.named("rtx-4090")).memory() == (), "not this card"
    assert known(tmp_path / "none").memory() == ()
    assert not (tmp_path / "none").exists(), "planning leaves nothing behind"
    store = RunStore.open(tmp_path)
    store.delete([store.run()])
    assert store.residuals() == ()
