"""Replicas on one machine: who gets which cards or part of a CPU, and that all plans fit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.core.hardware import Hardware, parse_gpu
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.planner import PlanRequest, plan_request
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.plan import plan_service
from qserve.service.replicas import AUTO, as_one, num_engines, plan_replicas, share_out
from qserve.service.request import ServiceRequest
from qserve.service.sharing import plan_both
from qserve.units import GIB


def machine(gpu: str | None = None, ram_gib: int = 32, cores: int = 8) -> Hardware:
    cards = parse_gpu(gpu) if gpu else ()
    cards = tuple(replace(card, uuid=f"GPU-{at}") for at, card in enumerate(cards))
    return Hardware(cards, ram_gib * GIB, ram_gib * GIB, cores)


def cards_of(replicas):
    return [tuple(card.uuid for card in one.cards) for one in replicas]


def test_each_replica_has_cards_of_its_own():
    found = plan_replicas(resolve("Qwen/Qwen3-8B"), machine("h100-80gb:4"), PlanRequest(), 4)
    assert cards_of(found) == [("GPU-0",), ("GPU-1",), ("GPU-2",), ("GPU-3",)]
    assert all(one.plan.fits and len(one.plan.devices) == 1 for one in found)
    assert len(as_one(found).devices) == 4


def test_ranks_are_as_few_as_hold_the_model():
    found = plan_replicas(resolve("Qwen/Qwen3-32B"), machine("rtx-4090:8"), plan_request(quant="bf16"), 2)
    assert cards_of(found) == [tuple(f"GPU-{at}" for at in range(4)), tuple(f"GPU-{at}" for at in range(4, 8))]
    assert found[0].plan.placement.tensor_parallel_size == 4


def test_auto_keeps_the_whole_context_on_the_fewest_cards():
    found = plan_replicas(resolve("Qwen/Qwen3-8B"), machine("rtx-4090:4"), plan_request(quant="bf16"), AUTO)
    spec = resolve("Qwen/Qwen3-8B").spec
    assert all(one.plan.workload.max_model_len == spec.max_position_embeddings for one in found)
    ranks = found[0].plan.placement.tensor_parallel_size
    assert len(found) * ranks == 4


def test_auto_on_a_cpu_is_one():
    assert len(plan_replicas(resolve("demo"), machine(), PlanRequest(), AUTO)) == 1


def test_two_on_one_card_share_its_memory():
    found = plan_replicas(resolve("Qwen/Qwen3-0.6B"), machine("rtx-4090"), PlanRequest(), 2)
    assert cards_of(found) == [("GPU-0",)] * 2
    held = [one.plan.devices[0].total_bytes - one.plan.devices[0].used_by_others_bytes for one in found]
    assert sum(held) <= parse_gpu("rtx-4090")[0].total_bytes
    assert len(as_one(found).devices) == 1, "there is one card, whoever shares it"


def test_a_cpu_is_shared_in_ram_and_cores():
    found = plan_replicas(resolve("demo"), machine(), PlanRequest(), 3)
    assert [one.num_cores for one in found] == [2, 2, 2]
    takes = sum(sum(term.num_bytes for term in one.plan.devices[0].terms) for one in found)
    assert takes <= 32 * GIB
    assert "3 of them share the CPU" in as_one(found).notes[-1]


def test_two_replicas_and_a_budget_for_one_is_one_sentence():
    with pytest.raises(
        DoesNotFit, match=r"^--replicas 2: each replica has .* of RAM, which is .* too little; lower --replicas"
    ):
        plan_replicas(resolve("Qwen/Qwen3-8B"), machine(ram_gib=20), plan_request(quant="bf16"), 2)


def test_more_ranks_than_cards_are_refused():
    request = plan_request(tensor_parallel_size=4)
    with pytest.raises(UsageError, match="--replicas 2 times 4 cards each are more than the 4 that are there"):
        plan_replicas(resolve("Qwen/Qwen3-32B"), machine("h100-80gb:4"), request, 2)


@pytest.mark.parametrize(("count", "cards", "ranks"), [(1, 4, 1), (3, 2, 1), (2, 4, 2), (5, 3, 1)])
def test_shares_never_sum_to_more_than_a_card(count, cards, ranks):
    whole = machine(f"rtx-4090:{cards}")
    taken = dict.fromkeys((card.uuid for card in whole.devices), 0)
    if count == 1:
        assert share_out(whole, count, ranks) == [whole]
        return
    for share in share_out(whole, count, ranks):
        assert len(share.devices) == ranks
        for card in share.devices:
            taken[card.uuid] += card.available_bytes
    assert all(num_bytes <= card.total_bytes for num_bytes, card in zip(taken.values(), whole.devices, strict=True))


def test_reward_replicas_have_the_last_cards():
    both = plan_both(
        resolve("Qwen/Qwen3-8B"), resolve("demo"), machine("h100-80gb:4"), (PlanRequest(), PlanRequest()), (2, 2)
    )
    assert cards_of(both.chat) == [("GPU-0",), ("GPU-1",)]
    assert cards_of(both.reward) == [("GPU-2",), ("GPU-3",)]


def test_on_a_cpu_both_share_cores_and_ram():
    both = plan_both(resolve("demo"), resolve("demo"), machine(cores=6), (PlanRequest(), PlanRequest()), (2, 1))
    assert {one.num_cores for one in (*both.chat, *both.reward)} == {2}


def test_the_plan_command_says_what_the_replicas_share(tmp_path):
    arguments = ["--model", "demo", "--gpu", "none", "--replicas", "2", "--json", "--state-dir", str(tmp_path)]
    told = json.loads(CliRunner().invoke(command, arguments).stdout)
    assert told["fits"] and "2 replicas, each a server with this plan" in told["notes"][-1]


def test_the_plan_command_counts_replicas_of_both(tmp_path):
    arguments = ["--model", "demo", "--reward", "demo", "--gpu", "none", "--replicas", "2", "--reward-replicas", "2"]
    arguments += ["--json", "--state-dir", str(tmp_path)]
    told = json.loads(CliRunner().invoke(command, arguments).stdout)
    assert "2 replicas" in told["notes"][-1] and "2 replicas" in told["reward"]["notes"][-1]


def test_experts_are_spread_over_the_engines_of_one_server():
    request = plan_request(data_parallel_size=2, enable_expert_parallel=True)
    (one,) = plan_replicas(resolve("Qwen/Qwen3-30B-A3B"), machine("h100-80gb:2"), request, 1)
    assert len(one.plan.devices) == 2 and cards_of([one]) == [("GPU-0", "GPU-1")]
    assert {"--data-parallel-size", "--enable-expert-parallel"} <= set(one.plan.engine_args)
    assert num_engines(one.plan) == 2


@pytest.mark.parametrize(
    ("model", "gpu", "count", "why"),
    [
        ("Qwen/Qwen3-8B", "h100-80gb:2", 1, "is for models with experts, and Qwen/Qwen3-8B has none; --replicas N"),
        ("Qwen/Qwen3-30B-A3B", "h100-80gb:4", 2, "one or the other"),
        ("Qwen/Qwen3-30B-A3B", "h100-80gb", 1, "takes at least 2 cards, and there are 1"),
    ],
)
def test_engines_that_would_spread_nothing_are_refused(model, gpu, count, why):
    with pytest.raises(UsageError, match=why):
        plan_replicas(resolve(model), machine(gpu), plan_request(data_parallel_size=2), count)


def test_a_node_has_its_part_of_the_replicas():
    asked = ServiceRequest.from_flags({"model": "Qwen/Qwen3-8B", "replicas": 4})
    chat = plan_service(replace(asked, replicas=2), Machine(machine("h100-80gb:4")), Knowledge()).chat
    assert len(chat.replicas) == 2


@pytest.mark.parametrize(
    "fixed", [{"engine": "transformers"}, {"max_model_len": 1000}, {"kv_cache_memory_bytes": 2 * GIB}]
)
def test_replicas_whose_speed_can_not_be_planned_are_served(fixed):
    """Of an engine that is planned alone, and with limits that refuse the load that is assumed where none is named."""
    request = ServiceRequest.from_flags({"model": "Qwen/Qwen3-8B", "replicas": 2, **fixed})
    chat = plan_service(request, Machine(machine("rtx-4090:2")), Knowledge()).chat
    assert cards_of(chat.replicas) == [("GPU-0",), ("GPU-1",)]
    assert chat.whole.fits and len(chat.whole.devices) == 2


FLASH = "Qwen/Qwen3.8-Flash-Next-FP8"
TABLE = 51_200_245_764


def here(gpu: str, ram_gib: int) -> Hardware:
    return replace(machine(gpu, ram_gib), packages=frozenset({"vllm"}))


def test_replicas_share_the_ram_of_what_lies_beside_their_cards():
    """47.68 GiB of tables for each server: a copy is none of another process's."""
    pair = plan_replicas(resolve(FLASH), here("b200:2", 96), PlanRequest(), 2)
    assert [one.plan.placement.offloaded_bytes for one in pair] == [{"cpu": TABLE}] * 2
    assert as_one(pair).placement.offloaded_bytes == {"cpu": 2 * TABLE}
    with pytest.raises(
        DoesNotFit, match=r"replica holds 47.68 GiB of RAM beside its cards, .*--replicas 1 is the most"
    ):
        plan_replicas(resolve(FLASH), here("b200:2", 95), PlanRequest(), 2)
    there = plan_replicas(resolve(FLASH), machine("b200:2", 8), PlanRequest(), 2)
    assert len(there) == 2


@pytest.mark.parametrize(("ram_gib", "count"), [(64, 1), (150, 3), (400, 4)])
def test_auto_takes_no_more_replicas_than_the_ram_holds(ram_gib, count):
    assert len(plan_replicas(resolve(FLASH), here("b200:4", ram_gib), PlanRequest(), AUTO)) == count


@pytest.mark.parametrize(("ram_gib", "engines", "held"), [(64, 1, TABLE), (96, 2, 2 * TABLE)])
def test_every_engine_of_a_server_has_tables_of_its_own(ram_gib, engines, held):
    (one,) = plan_replicas(resolve(FLASH), here("b200:2", ram_gib), plan_request(data_parallel_size=engines), 1)
    assert one.plan.placement.offloaded_bytes == {"cpu": held}


def test_engines_that_the_ram_does_not_hold_are_refused():
    with pytest.raises(DoesNotFit, match=r"missing of the RAM: tables of n-grams 95.37 GiB"):
        plan_replicas(resolve(FLASH), here("b200:2", 95), plan_request(data_parallel_size=2), 1)


def planned_for_load(ram_gib: int, **fixed):
    machine_here = replace(Machine(here("b200:2", ram_gib)), serves=False)
    return plan_service(
        ServiceRequest.from_flags({"model": FLASH, "users": 64, **fixed}), machine_here, Knowledge()
    ).chat


def test_a_load_is_served_by_no_more_servers_than_the_ram_holds():
    whole = planned_for_load(64).whole
    assert {one["replicas"] for one in whole.speed["alternatives"]} == {1}
    with pytest.raises(DoesNotFit, match="--replicas 1 is the most"):
        planned_for_load(64, replicas=2)
    pair = planned_for_load(128, replicas=2)
    assert pair.whole.placement.offloaded_bytes == {"cpu": 2 * TABLE}
    assert [one.plan.placement.offloaded_bytes for one in pair.replicas] == [{"cpu": TABLE}] * 2
