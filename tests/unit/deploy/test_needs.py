"""What a plan takes of a machine beside its cards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.deploy.needs import Relays, needs_of
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan, plan_request
from qserve.planner.memory.host import GATEWAY, LARGE_BODIES
from qserve.service.machine import hardware_of
from qserve.units import GIB


@pytest.fixture(scope="module")
def plans():
    model = resolve("Qwen/Qwen3-8B")
    return {gpu: make_plan(model, hardware_of(gpu), PlanRequest()) for gpu in ("l40s", "rtx-4090:2", "none")}


def test_ranks_take_memory_cores_and_shared_memory(plans):
    one, two = needs_of([plans["l40s"]], 1, 0), needs_of([plans["rtx-4090:2"]], 2, 0)
    assert two.memory_bytes > one.memory_bytes
    assert two.num_cores == one.num_cores + 1
    assert two.shm_bytes > one.shm_bytes >= 2 * GIB
    assert two.memory_limit_bytes > two.memory_bytes > two.shm_bytes


def test_a_plan_on_the_cpu_takes_what_its_terms_say(plans):
    plan = plans["none"]
    held = sum(term.num_bytes for device in plan.devices for term in device.terms)
    needs = needs_of([plan], 0, 0)
    assert held < needs.memory_bytes < held + 5 * GIB
    assert (needs.num_cards, needs.card_name) == (0, "")


def test_weights_on_the_cpu_of_a_model_on_a_card_are_counted(plans):
    plan = plans["l40s"]
    placed = replace(plan, placement=replace(plan.placement, offloaded_bytes={"cpu": 40 * GIB}))
    assert needs_of([placed], 1, 0).memory_bytes == needs_of([plan], 1, 0).memory_bytes + 40 * GIB


@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090:2"])
def test_a_model_that_sleeps_has_its_weights_in_ram(plans, gpu):
    plan = make_plan(resolve("Qwen/Qwen3-8B"), hardware_of(gpu), plan_request(enable_sleep_mode=True))
    weights = sum(device.weights_bytes for device in plan.devices)
    more = (
        needs_of([plan], len(plan.devices), 0).memory_bytes - needs_of([plans[gpu]], len(plan.devices), 0).memory_bytes
    )
    assert weights - GIB < more < weights + GIB


def test_what_is_fetched_has_a_place_on_disk(plans):
    parameters = resolve("Qwen/Qwen3-8B").parameters
    fetched = needs_of([plans["l40s"]], 1, parameters).disk_bytes - needs_of([plans["l40s"]], 1, 0).disk_bytes
    assert 2 * parameters < fetched < 3 * parameters


def test_processes_that_relay_take_a_core_and_memory_each(plans):
    alone, same = needs_of([plans["l40s"]], 1, 0), needs_of([plans["l40s"]], 1, 0, Relays.of(1))
    eight = needs_of([plans["l40s"]], 1, 0, Relays.of(8))
    assert alone == same
    assert eight.num_cores == alone.num_cores + 8
    assert eight.memory_bytes >= alone.memory_bytes + 8 * (GATEWAY.num_bytes + LARGE_BODIES.num_bytes) // GIB * GIB
