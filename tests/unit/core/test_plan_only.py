"""configs/plan_only.toml: every card loads, says where its figures are from, and is named by people and by its tool."""

from __future__ import annotations

import shlex

import pytest

from qserve.core.facts import load
from qserve.core.hardware import Hardware, known_gpu, known_gpus, parse_gpu
from qserve.core.plan_only import (
    PLAN_ONLY_KINDS,
    backend_of,
    gpu_share_bytes,
    peak_flop_per_s,
    plan_only_rows,
    usable_bytes,
)
from qserve.core.schemes import SCHEMES
from qserve.errors import UsageError
from qserve.hub.resolve import resolve
from qserve.planner import make_plan, plan_request
from qserve.planner.speed.estimate import estimate_speed
from qserve.planner.speed.price import hourly_price
from qserve.units import GIB, MIB

TABLE = load("plan_only")
ROWS = plan_only_rows()


@pytest.mark.parametrize("key", ROWS)
def test_a_card_loads_with_a_kind_that_no_engine_runs_on(key: str) -> None:
    (device,) = parse_gpu(key)
    assert device.is_plan_only
    assert device.kind in PLAN_ONLY_KINDS
    assert backend_of(device.kind).serves
    assert device.compute_capability is None
    assert 2 * GIB < device.total_bytes < 400 * GIB
    assert 60e9 < device.bandwidth_bytes_per_s < 2e12
    assert peak_flop_per_s(device.name) > 1e12
    assert parse_gpu(device.name) == (device,)


@pytest.mark.parametrize("key", ROWS)
def test_what_may_be_planned_on_it_is_in_its_row_and_has_its_arithmetic(key: str) -> None:
    device = known_gpus()[key]
    assert set(device.schemes) <= set(SCHEMES)
    assert "fp16" in device.schemes
    assert ("bf16" in device.schemes) == device.supports("bf16")
    assert not {"fp8", "nvfp4", "mxfp4"} & set(device.schemes)


def test_every_figure_names_where_it_was_read_and_every_source_is_used() -> None:
    used = {source for row in TABLE["cards"].values() for source in row["sources"]}
    assert used == set(TABLE["sources"])
    assert all(row["source"] for row in TABLE["backends"].values())
    assert set(TABLE["backends"]) == set(PLAN_ONLY_KINDS)


def test_shares_are_in_order_and_within_the_peak() -> None:
    for kind in PLAN_ONLY_KINDS:
        backend = backend_of(kind)
        for low, planned, high in (backend.shares, backend.computed):
            assert 0 < low < planned < high <= 1


def test_no_name_is_lost_to_another_card() -> None:
    names = {key: {key, *row["aliases"], row["name"]} for key, row in ROWS.items()}
    assert [(name, key) for key, own in names.items() for name in own if parse_gpu(name)[0] != known_gpus()[key]] == []
    assert len(known_gpus()) > len(ROWS) + len(load("gpus")["gpus"])


@pytest.mark.parametrize(
    ("printed", "key"),
    [
        ("Intel(R) Arc(TM) Pro B60 Graphics", "arc-pro-b60"),
        ("Intel(R) Graphics [0xe211]", "b60"),
        ("Intel(R) Arc(TM) Pro B50 Graphics", "b50"),
        ("910B3", "ascend-910b"),
        ("Ascend 910B3", "910b"),
        ("310P3", "ascend-310p"),
        ("Ascend310P3", "310p"),
        ("Atlas 300I Duo", "310p"),
        ("910B4", "ascend-910b4"),
        ("Ascend910B4", "ascend-910b4"),
        ("910B4-1", "ascend-910b"),
        ("Ascend910B2", "ascend-910b"),
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Radeon 8060S Graphics", "strix-halo"),
        ("Apple M4 Max 64 GB", "m4-max-64gb"),
        ("apple m5 pro 48gb", "m5-pro-48gb"),
    ],
)
def test_a_card_is_found_by_what_its_tool_prints(printed: str, key: str) -> None:
    assert parse_gpu(printed) == parse_gpu(key)
    assert known_gpu(printed) == known_gpus()[key]


@pytest.mark.parametrize(
    ("asked", "sizes", "example"),
    [
        ("m4-max", "36, 48, 64, 128 GB", "m4-max-128gb"),
        ("Apple M1", "8, 16 GB", "m1-16gb"),
        ("m4-max-100gb", "36, 48, 64, 128 GB", "m4-max-128gb"),
    ],
)
def test_a_chip_that_shares_ram_is_asked_for_its_size(asked: str, sizes: str, example: str) -> None:
    with pytest.raises(UsageError, match=f"of which it has {sizes}; name it: --gpu {example}"):
        parse_gpu(asked)


def test_a_smaller_bin_of_a_chip_has_its_own_bandwidth() -> None:
    assert known_gpus()["m4-max-36gb"].bandwidth_bytes_per_s == 410e9
    assert known_gpus()["m4-max-48gb"].bandwidth_bytes_per_s == 546e9
    assert known_gpus()["m3-max-96gb"].bandwidth_bytes_per_s == 300e9


def test_the_gpus_share_of_the_ram_is_what_macos_told() -> None:
    """ggml_metal_init: recommendedMaxWorkingSetSize = 11453.25 MB of an M4 with 16 GB (logs of llama.cpp's CI)."""
    assert gpu_share_bytes(16 * GIB) == pytest.approx(11453.25e6, rel=0.001)
    assert gpu_share_bytes(64 * GIB) == 48 * GIB  # https://github.com/gpustack/gpustack/issues/1375: 75 %


def test_a_card_is_described_by_another_one() -> None:
    (card,) = parse_gpu("like=m4-max-64gb,memory=56GiB,used=1GiB")
    known = known_gpus()["m4-max-64gb"]
    assert (card.total_bytes, card.used_by_others_bytes) == (56 * GIB, GIB)
    assert (card.name, card.schemes, card.kind) == (known.name, known.schemes, "mps")
    assert parse_gpu("like=rtx-4090,count=2") == parse_gpu("rtx-4090:2")
    assert parse_gpu("like=strix-halo,memory=100GiB")[0].compute_capability is None
    assert parse_gpu("like=b60,bandwidth=220GB/s,sm=10,name=mine")[0].bandwidth_bytes_per_s == 220e9


@pytest.mark.parametrize("key", ["rtx-4090", "h100-sxm", "a100-80gb", "mi300x", "b60", "m5-max-64gb", "310p"])
def test_a_cards_name_changes_nothing_of_its_speed_or_price(key: str) -> None:
    (mine,), (known,) = parse_gpu(f"like={key},name=mine"), parse_gpu(key)
    assert (mine.name, mine.known_as) == ("mine", known.name)
    assert hourly_price(mine) == hourly_price(known)
    speeds = []
    for card in (mine, known):
        machine = Hardware((card,), 64 * GIB, 60 * GIB, 8)
        plan = make_plan(resolve("Qwen/Qwen3-0.6B"), machine, plan_request())
        speeds.append(estimate_speed(plan, resolve("Qwen/Qwen3-0.6B").spec, card, None).figures)
    assert speeds[0] == speeds[1]


@pytest.mark.parametrize("key", ["rtx-4090", "mi300x", "b60"])
def test_a_renamed_card_is_told_in_commands_as_the_same_card(key: str) -> None:
    (mine,) = parse_gpu(f"like={key},memory=8GiB,name=mine,bandwidth=100GB/s")
    plan = make_plan(resolve("Qwen/Qwen3-32B"), Hardware((mine,), 64 * GIB, 60 * GIB, 8), plan_request())
    flags = [shlex.split(way.command)[5] for way in plan.suggestions if "name=mine" in way.command]
    assert flags
    assert all(parse_gpu(flag)[0] == mine for flag in flags)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("like=b60,cc=8.9", "Intel Arc Pro B60 has no compute capability; leave cc= out"),
        ("like=mi300x,cc=9.0", "AMD Instinct MI300X has no compute capability; leave cc= out"),
        ("like=mi300x,name=x,cc=9.0", "has no compute capability; leave cc= out"),
        ("like=b60,name=", "name= is empty; write for example name=mine, or leave it out"),
        ("memory=24GiB,name= ", "name= is empty"),
        ("like=b61,memory=4GiB", "near matches: .*b60"),
        ("like=m4-max,memory=4GiB", "name it: --gpu m4-max-128gb"),
    ],
)
def test_a_wrong_likeness_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_gpu(text)


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("Intel Data Center GPU Max 1550", "arc-pro-b60"),
        ("arc-a770", "arc-pro-b60"),
        ("Huawei Atlas 900", "ascend-910b"),
        ("ascend-950pr", "ascend-910b"),
        ("m9-pro-64gb", "m4-max-64gb"),
        ("Apple M9", "m4-max-64gb"),
        ("Radeon RX 9070", "rx-7900-xtx"),
        ("mi210", "mi300x"),
        ("AMD Instinct MI100", "mi300x"),
        ("b61", "arc-pro-b50|arc-pro-b60"),
    ],
)
def test_an_unknown_card_of_another_maker_is_described_by_one_of_its_own(name: str, like: str) -> None:
    with pytest.raises(UsageError, match=f"Any card can be described: --gpu like=({like}),memory=24GiB") as told:
        parse_gpu(name)
    (card,) = parse_gpu(str(told.value).rpartition("--gpu ")[2])
    assert card.compute_capability is None


def test_an_unknown_nvidia_card_is_described_by_its_figures() -> None:
    for name in ("rtx-4095", "gtx-9999", "xyz", "NVIDIA Foo"):
        with pytest.raises(UsageError, match=r"--gpu memory=23\.6GiB,sm=128$"):
            parse_gpu(name)


@pytest.mark.parametrize("chip", ["m4-max", "m1", "m3-ultra"])
def test_another_limit_is_not_the_one_that_is_planned_anyway(chip: str) -> None:
    with pytest.raises(UsageError) as told:
        parse_gpu(chip)
    like = str(told.value).rpartition("--gpu ")[2]
    (raised,), (usual,) = parse_gpu(like), parse_gpu(like.partition(",")[0].removeprefix("like="))
    assert raised.total_bytes > usual.total_bytes


def test_the_b60_has_what_xpu_smi_prints() -> None:
    assert known_gpus()["b60"].total_bytes == 24480 * MIB


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if "printed_mib" in row])
def test_a_card_has_what_torch_sees_of_it_and_not_what_its_tool_prints(key: str) -> None:
    card, printed = known_gpus()[key], ROWS[key]["printed_mib"] * MIB
    assert 0.9 * printed < card.total_bytes < 0.96 * printed
    assert usable_bytes(card.name, printed) == card.total_bytes
    assert usable_bytes(card.name, 0) == 0


def test_an_ascend_of_64_gb_has_the_capacity_that_its_out_of_memory_errors_name() -> None:
    """https://github.com/vllm-project/vllm-ascend/issues/6611: 60.96 GiB total capacity."""
    assert known_gpus()["910b3"].total_bytes / GIB == pytest.approx(60.96, abs=0.01)
    assert known_gpus()["910b4"].total_bytes / GIB == 29.5
    assert known_gpus()["910b4-1"] == known_gpus()["910b"]


@pytest.mark.parametrize("size", ["", "-pro", "-max"])
def test_a_core_of_an_m5_multiplies_four_times_as_fast_as_an_m4s(size: str) -> None:
    ram = "64" if size == "-max" else "24"
    new, old = known_gpus()[f"m5{size}-{ram}gb"], known_gpus()[f"m4{size}-{ram}gb"]
    assert peak_flop_per_s(new.name) / new.sm_count == pytest.approx(4 * peak_flop_per_s(old.name) / old.sm_count)


def test_intels_cards_have_what_vllm_makes_while_loading_and_no_stored_fp8() -> None:
    for key in ("b50", "b60", "b70"):
        assert {"fp8_per_tensor", "fp8_per_block", "mxfp8", "w4a16"} <= set(known_gpus()[key].schemes)
        assert "fp8" not in known_gpus()[key].schemes
