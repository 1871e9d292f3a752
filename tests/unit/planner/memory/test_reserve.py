"""Memory that stays free: the shares, their order, and what plans leave of a memory that a GPU shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import Device, Hardware, known_gpu, parse_gpu
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.planner.memory.host import with_host
from qserve.planner.memory.reserve import Reserve
from qserve.planner.search.gpu_flag import gpu_flag
from qserve.units import GIB, MIB

GB10 = known_gpu("gb10")
assert GB10 is not None
FREE = 115 * GIB
SPARK = Hardware(
    (replace(GB10, used_by_others_bytes=GB10.total_bytes - FREE),), GB10.total_bytes, FREE, 20, packages=frozenset()
)


@pytest.mark.parametrize("total", [512 * MIB, 8 * GIB, 24 * GIB, 121 * GIB, 2048 * GIB])
@pytest.mark.parametrize("shares_gpu", [False, True])
def test_each_step_comes_before_the_next_one(total: int, shares_gpu: bool) -> None:
    one = Reserve.of(total, shares_gpu=shares_gpu)
    assert total > one.planned_bytes > one.recover_bytes > one.refuse_bytes > one.drain_bytes > one.end_bytes > 0


def test_the_shares_where_a_gpu_has_its_memory_in_the_ram() -> None:
    one = Reserve.of(120 * GIB, shares_gpu=True)
    assert one.planned_bytes == pytest.approx(12 * GIB, rel=1e-6)
    assert one.end_bytes == pytest.approx(6 * GIB, rel=1e-6)


@pytest.mark.parametrize(("total", "refuse"), [(512 * MIB, 96 * MIB), (50 * GIB, GIB), (2048 * GIB, 2 * GIB)])
def test_the_bounds_of_ram_alone(total: int, refuse: int) -> None:
    assert Reserve.of(total, shares_gpu=False).refuse_bytes == refuse


def test_what_somebody_asked_for_counts_everywhere() -> None:
    assert Reserve.of(GIB, shares_gpu=True, asked_bytes=3 * GIB) == Reserve(3 * GIB)


def test_a_gpu_that_shares_the_ram_takes_what_is_left_for_models() -> None:
    found = with_host(SPARK)
    (card,) = found.devices
    reserve = Reserve.of(GB10.total_bytes, shares_gpu=True).planned_bytes
    assert card.available_bytes == FREE - reserve - found.host_bytes == found.ram_for_models_bytes
    (note,) = found.notes
    assert note.startswith("NVIDIA GB10 has its memory in the machine's RAM: 12.6 GiB of it stay free")
    assert with_host(SPARK, min_free_bytes=0).devices[0].available_bytes == FREE - found.host_bytes


def test_a_described_one_leaves_it_of_its_own_memory() -> None:
    described = replace(SPARK, devices=parse_gpu("gb10"), packages=None, ram_total_bytes=GIB, ram_available_bytes=GIB)
    found = with_host(described)
    reserve = Reserve.of(GB10.total_bytes, shares_gpu=True).planned_bytes
    assert found.devices[0].available_bytes == GB10.total_bytes - reserve - found.host_bytes
    assert found.ram_available_bytes == GIB, "that is the RAM of the machine that plans"
    assert gpu_flag(found.devices[0]) == "gb10", "the command plans the same card again"


def test_of_an_amd_processor_linux_keeps_the_rest() -> None:
    """Described, its memory is the part of the RAM that Linux lets it take; here, the RAM bounds it."""
    (strix,) = parse_gpu("strix-halo")
    described = Hardware((strix,), 64 * GIB, 60 * GIB, 16)
    assert with_host(described).devices == (strix,)
    whole = replace(strix, total_bytes=120 * GIB)
    here = with_host(Hardware((whole,), 124 * GIB, 118 * GIB, 16, packages=frozenset()))
    assert here.devices[0].available_bytes == here.ram_for_models_bytes < 106 * GIB


@pytest.mark.parametrize("gpu", ["rtx-4090", "m4-max-64gb"])
def test_other_cards_lose_nothing(gpu: str) -> None:
    machine = Hardware(parse_gpu(gpu), 64 * GIB, 60 * GIB, 16)
    assert with_host(machine).devices == machine.devices


def test_a_plan_there_leaves_room_and_counts_the_hosts_processes() -> None:
    request = PlanRequest(engine="vllm", max_model_len=2048)
    (before,), (after,) = (
        make_plan(resolve("demo"), machine, request).devices for machine in (SPARK, with_host(SPARK))
    )
    assert after.used_by_others_bytes - before.used_by_others_bytes > 12 * GIB
    assert after.free_bytes >= 0
    assert [term.num_bytes for term in after.terms if term.name == "host processes"] == [1500 * MIB]
    card: Device = parse_gpu("rtx-4090")[0]
    (discrete,) = make_plan(resolve("demo"), replace(SPARK, devices=(card,)), request).devices
    assert "host processes" not in [term.name for term in discrete.terms]


def test_a_plan_on_the_cpu_leaves_what_somebody_asked_for() -> None:
    machine = Hardware((), 16 * GIB, 12 * GIB, 4)
    assert with_host(machine, min_free_bytes=3 * GIB).ram_available_bytes == 8 * GIB
    assert with_host(machine).ram_available_bytes == 12 * GIB
