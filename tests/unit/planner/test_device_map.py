"""Layers over cards, RAM and disk: nothing forgotten, nothing twice, no place over its budget."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor
from qserve.engines.transformers.plan.device_map import (
    DeviceBudget,
    Mode,
    Module,
    Modules,
    PartialDeviceMap,
    place_modules,
)
from qserve.engines.transformers.plan.module_map import ModuleMap, overdrawn
from qserve.engines.transformers.plan.modules import modules_of, tensors_by_layer
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, PlanRequest, make_plan, plan_request
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.units import GIB, MIB

MODES: tuple[Mode, ...] = ("auto", "balanced", "sequential")


def checkpoint_of(model: str) -> Checkpoint:
    config = bundled_config(model) or {}
    return Checkpoint(model, None, config, ModelSpec.from_config(config, model))


def machine(*card_gib: int, ram_gib: int = 64) -> Hardware:
    cards = tuple(Device("card", "cuda", gib * GIB, 0, 128, 0, ("fp16", "bf16"), (8, 9)) for gib in card_gib)
    return Hardware(cards, ram_gib * GIB, ram_gib * GIB, 16, disk_free_bytes=500 * GIB)


def plan_of(model: str, hardware: Hardware, **fixed: Any) -> Plan:
    return make_plan(checkpoint_of(model), hardware, plan_request(engine="transformers", **{"quant": "bf16", **fixed}))


def map_of(plan: Plan) -> dict[str, int | str]:
    assert isinstance(plan.placement.device_map, dict)
    return plan.placement.device_map


def layers_on(plan: Plan) -> dict[int | str, list[int]]:
    found: dict[int | str, list[int]] = {}
    for name, place in map_of(plan).items():
        if name.startswith("model.layers."):
            found.setdefault(place, []).append(int(name.rpartition(".")[2]))
    return found


def test_32b_over_two_cards_of_48() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(48, 48))
    assert plan.fits
    halves = layers_on(plan)
    assert abs(len(halves[0]) - len(halves[1])) <= 3  # the embedding and the head weigh about three layers each
    assert map_of(plan)["lm_head"] == 1
    for device in plan.devices:
        assert device.free_bytes > 0
        assert device.kv_cache_bytes > 0
    full = abs(plan.devices[0].free_bytes - plan.devices[1].free_bytes)
    assert full < 2.5 * GIB  # no card is left to overflow while the other has room


def test_sequential_fills_the_first_card_first() -> None:
    plan = plan_of("Qwen/Qwen3-14B", machine(24, 24), device_map="sequential")
    counts = {place: len(layers) for place, layers in layers_on(plan).items()}
    assert counts[0] > counts[1]
    assert plan.devices[0].free_bytes < plan.devices[1].free_bytes


def test_auto_stays_on_one_card_where_that_is_enough() -> None:
    plan = plan_of("Qwen/Qwen3-8B", machine(80, 80))
    assert plan.placement.device_map == "cuda:0"
    assert plan.devices[1].runtime_bytes == plan.devices[1].activations_bytes == 0


def test_a_card_that_others_use_gets_less() -> None:
    cards = (Device("a", "cuda", 48 * GIB, 12 * GIB, 128, 0, ("bf16",), (8, 9)), *machine(48).devices)
    plan = make_plan(
        checkpoint_of("Qwen/Qwen3-32B"),
        Hardware(cards, 64 * GIB, 64 * GIB, 16),
        PlanRequest(engine="transformers", quant="bf16", max_model_len=4096),
    )
    held = layers_on(plan)
    assert plan.fits
    assert len(held[0]) < len(held[1])
    assert plan.devices[0].free_bytes >= 0


def test_offloaded_layers_compute_and_keep_their_cache_on_the_first_card() -> None:
    same = {"max_model_len": 4096, "max_num_seqs": 16, "max_num_batched_tokens": 2048}  # a larger card takes more
    plan = plan_of("Qwen/Qwen3-32B", machine(24, ram_gib=128), offload="cpu", **same)
    assert plan.fits
    held, card = layers_on(plan), plan.devices[0]
    assert len(held["cpu"]) > len(held[0])
    assert card.kv_cache_bytes == pytest.approx(
        plan.placement.kv_cache_memory_bytes, rel=0.001
    )  # all layers', not some
    assert plan.placement.offloaded_bytes["cpu"] == pytest.approx(len(held["cpu"]) * 0.907 * GIB, rel=0.01)
    # Layers come one ahead, into two buffers that stay; a step needs no more room than it does without.
    stays = plan_of("Qwen/Qwen3-32B", machine(100), **same).devices[0]
    assert card.activations_bytes == stays.activations_bytes
    embedding_and_head = 2 * 151_936 * 5120 * 2
    layers = card.weights_bytes - embedding_and_head
    assert layers == pytest.approx((len(held[0]) + 2) * 0.907 * GIB, rel=0.01)
    assert {map_of(plan)[name] for name in ("model.embed_tokens", "model.norm", "lm_head")} == {0}


def test_what_ram_can_not_hold_goes_to_disk() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(24, ram_gib=30), offload="disk", max_model_len=4096)
    held = layers_on(plan)
    assert list(held) == [0, "cpu", "disk"]
    assert plan.placement.offloaded_bytes["cpu"] <= 30 * GIB
    assert not plan_of("Qwen/Qwen3-32B", machine(24, ram_gib=30), offload="cpu", max_model_len=4096).fits


def test_a_cpu_offloads_to_disk() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(ram_gib=48), offload="disk", max_model_len=2048)
    assert plan.fits
    assert list(layers_on(plan)) == ["cpu", "disk"]
    assert plan.devices[0].free_bytes >= 0


def test_bitsandbytes_offloads_in_16_bit_beside_a_card_and_not_at_all_without_one() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(16, ram_gib=128), quant="bnb-nf4", offload="cpu", max_model_len=4096)
    moved = layers_on(plan)["cpu"]
    assert plan.placement.offloaded_bytes["cpu"] == pytest.approx(len(moved) * 0.907 * GIB, rel=0.01)
    alone = plan_of("Qwen/Qwen3-32B", machine(ram_gib=16), quant="bnb-nf4", offload="disk", max_model_len=2048)
    assert not alone.fits
    assert "on a CPU, transformers can't offload layers" in str(alone.why_not)
    by_hand = ModuleMap.parse({"": "cpu", "model.layers.0": "disk"}, "m.json")
    with pytest.raises(UsageError, match="can't offload layers of a model that bitsandbytes quantizes"):
        plan_of("Qwen/Qwen3-32B", machine(ram_gib=64), quant="bnb-nf4", device_map=by_hand)


def test_tied_weights_stay_together() -> None:
    plan = plan_of("Qwen/Qwen3-4B", machine(6, 6), max_model_len=2048)
    places = map_of(plan)
    assert places["lm_head"] == places["model.embed_tokens"] == 0
    assert places["model.norm"] == 1


def test_max_memory_bounds_what_is_held_in_all() -> None:
    plan = plan_of("Qwen/Qwen3-14B", machine(80, 80, 80), max_memory="0=20GiB,2=20GiB", max_model_len=4096)
    assert plan.fits
    assert set(layers_on(plan)) == {0, 2}
    for device in (plan.devices[0], plan.devices[2]):
        held = device.total_bytes - device.free_bytes
        assert held <= 20 * GIB
    assert plan.devices[1].free_bytes == 80 * GIB


def test_naming_the_cpu_in_max_memory_allows_offloading_to_it() -> None:
    plan = plan_of("Qwen/Qwen3-14B", machine(80), max_memory="0=20GiB,cpu=30GiB", max_model_len=4096)
    assert set(layers_on(plan)) == {0, "cpu"}
    assert plan.placement.offloaded_bytes["cpu"] <= 30 * GIB


def test_a_map_or_a_limit_is_for_the_transformers_engine() -> None:
    request = plan_request(quant="bf16", device_map="balanced", max_memory="0=40GiB,1=40GiB")
    plan = make_plan(checkpoint_of("Qwen/Qwen3-14B"), machine(48, 48), request)
    assert plan.engine == "transformers"
    with pytest.raises(UsageError, match="--device-map, --max-memory: the transformers engine's alone"):
        make_plan(
            checkpoint_of("Qwen/Qwen3-14B"),
            machine(48, 48),
            plan_request(engine="vllm", device_map="balanced", max_memory="0=40GiB"),
        )


BY_HAND = {"": 0, "model.layers.40": 1, "model.norm": 1, "lm_head": "cuda:1"}


def test_a_map_by_hand_is_counted() -> None:
    places = {**BY_HAND, **{f"model.layers.{index}": 1 for index in range(30, 64)}}
    plan = plan_of("Qwen/Qwen3-32B", machine(48, 48), device_map=ModuleMap.parse(places, "m.json"), max_model_len=4096)
    assert plan.fits
    assert layers_on(plan)[0] == list(range(30))
    assert map_of(plan)["model.embed_tokens"] == 0
    assert map_of(plan)["lm_head"] == 1


def test_a_map_by_hand_that_overdraws_a_card_says_by_how_much() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(24, 80), device_map=ModuleMap.parse({"": 0, "lm_head": 1}, "m.json"))
    assert not plan.fits
    assert plan.why_not is not None
    assert "GiB too much on card 0; move" in plan.why_not
    assert plan.short_bytes > 30 * GIB


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"": 0, "model.leyers": 1}, "the model has no module model.leyers; it has model.embed_tokens, "),
        ({"": 0, "model.layers.64": 1}, "the model has no module model.layers.64"),
        ({"model.layers": 0, "lm_head": 0}, "places nothing for model.embed_tokens, model.rotary_emb, model.norm"),
        ({"": 0, "model.layers.3.mlp": 1}, "model.layers.3.mlp is a part of model.layers.3, which is placed as one"),
        ({"": 0, "lm_head": 2}, "lm_head is on card 2, but this machine has 0, 1"),
        ({"": "cpu"}, "puts nothing on 0, 1; to run on the CPU alone, write --gpu none"),
        ({"": 0, "model.embed_tokens": "cpu"}, "model.embed_tokens is offloaded to cpu, and every step would copy"),
        ({"": "tpu"}, "'tpu' is not a device; a device is a card's number"),
        ({"": -1}, "-1 is not a device"),
        ({"": True}, "True is not a device"),
        ({}, "is not a mapping of module names to devices"),
        (["cpu"], "is not a mapping of module names to devices"),
    ],
)
def test_a_map_with_errors_is_refused_by_name(places: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_of("Qwen/Qwen3-32B", machine(80, 80), device_map=ModuleMap.parse(places, "m.json"))
    assert message in str(error.value)
    assert "--device-map m.json" in str(error.value)


def test_a_map_that_parts_tied_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="they share one weight"):
        plan_of("Qwen/Qwen3-4B", machine(24, 24), device_map=ModuleMap.parse({"": 0, "lm_head": 1}, "m.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("20GiB", "can't read '20GiB'"),
        ("0=20GiB,0=30GiB", "names 0 twice"),
        ("gpu=20GiB", "'gpu' is not a device"),
        ("0=much", "not a size in memory"),
    ],
)
def test_limits_that_can_not_be_read(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_request(max_memory=text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "model", ["Qwen/Qwen3-32B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3.5-9B", "Qwen/Qwen2.5-7B"]
)
def test_modules_weigh_what_the_model_weighs(model: str) -> None:
    spec = checkpoint_of(model).spec
    loading = Loading("bfloat16", fuse_experts=spec.moe is not None)

    def count(tensors: Any) -> int:
        return rank_weights(spec, tensors, loading)

    modules = modules_of(spec, tensors_of(spec), count, count)
    assert sum(module.weights_bytes for module in modules.all) == count(tensors_of(spec))
    assert len(modules.layers) == spec.num_hidden_layers


def test_layers_of_hybrids_differ() -> None:
    spec = checkpoint_of("Qwen/Qwen3.5-9B").spec
    by_layer, _ = tensors_by_layer(spec, tensors_of(spec))
    kinds = [
        "linear_attention" if any("linear_attn" in t.name for t in held) else "full_attention" for held in by_layer
    ]
    assert kinds == list(spec.layer_types)


def test_tensors_with_an_index_of_their_own_stay_in_their_layer() -> None:
    spec = checkpoint_of("Qwen/Qwen3-0.6B").spec
    named = [Tensor(f"model.layers.{index}.mlp.up_proj.weight", "BF16", (4, 4), 32) for index in range(28)]
    by_layer, outside = tensors_by_layer(spec, named)
    assert [[tensor.name for tensor in held] for held in by_layer] == [[tensor.name] for tensor in named]
    assert not outside


sizes = st.integers(1, 2000)
modules_strategy = st.builds(
    lambda layers, cache, embed, head: Modules(
        (Module("embed", embed, 0, embed, embed),),
        tuple(Module(f"layer.{i}", w, cache, w, max(1, w // 3)) for i, w in enumerate(layers)),
        (Module("head", head, 0, head, head),),
    ),
    st.lists(sizes, min_size=1, max_size=24),
    st.integers(0, 300),
    sizes,
    sizes,
)
cards_strategy = st.lists(st.integers(-100, 8000), min_size=1, max_size=4)
overflow_strategy = st.sampled_from(((), ("cpu",), ("cpu", "disk"), ("disk",)))


def laid(
    modules: Modules, rooms: list[int], places: tuple[str, ...], mode: Mode
) -> tuple[PartialDeviceMap | None, list[DeviceBudget]]:
    cards = [DeviceBudget(index, room) for index, room in enumerate(rooms)]
    overflow = [DeviceBudget(name, 6000 if name == "cpu" else 10**9) for name in places]
    return place_modules(modules, cards, overflow, mode), [*cards, *overflow]


@settings(max_examples=150)
@given(modules_strategy, cards_strategy, overflow_strategy, st.sampled_from(MODES))
def test_every_module_once_and_no_place_over_its_budget(
    modules: Modules, rooms: list[int], places: tuple[str, ...], mode: Mode
) -> None:
    found, bins = laid(modules, rooms, places, mode)
    if found is None:
        return
    placed = [module.name for _, held in found.places for module in held]
    assert sorted(placed) == sorted(module.name for module in modules.all)
    assert overdrawn(found, bins) == {}
    assert sum(found.cache_on(name) for name in found.names) == sum(m.kv_cache_bytes for m in modules.all)


@settings(max_examples=100)
@given(modules_strategy, cards_strategy, overflow_strategy)
def test_sequential_goes_forward_only(modules: Modules, rooms: list[int], places: tuple[str, ...]) -> None:
    found, bins = laid(modules, rooms, places, "sequential")
    if found is None:
        return
    order = {place.name: index for index, place in enumerate(bins)}
    along = [order[found.device_map[layer.name]] for layer in modules.layers]
    assert along == sorted(along)


@settings(max_examples=100)
@given(modules_strategy, cards_strategy)
def test_what_fits_one_way_fits_the_other_ways(modules: Modules, rooms: list[int]) -> None:
    assert len({laid(modules, rooms, (), mode)[0] is None for mode in MODES}) == 1


@settings(max_examples=100)
@given(modules_strategy, cards_strategy)
def test_balancing_never_fills_a_card_more_than_filling_in_order_does(modules: Modules, rooms: list[int]) -> None:
    balanced, bins = laid(modules, rooms, (), "balanced")
    sequential, _ = laid(modules, rooms, (), "sequential")
    if balanced is None or sequential is None:
        return

    def fullest(found: PartialDeviceMap) -> float:
        return max(found.needs_on(place.name) / place.capacity_bytes for place in bins if place.name in found.names)

    assert fullest(balanced) <= fullest(sequential) + 0.001


def test_a_pool_that_no_card_can_hold_is_made_smaller_rather_than_refused() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(48, 24))
    assert plan.fits
    assert plan.kv_cache_tokens >= plan.workload.max_model_len
    assert all(device.free_bytes >= 0 for device in plan.devices)
    assert plan.placement.kv_cache_memory_bytes > 500 * MIB


def test_layers_in_ram_beside_one_card_have_two_buffers_there() -> None:
    """They come one ahead (model/layer_stream.py): two whole layers, for good, in place of one matrix at a time."""
    plan = plan_of("Qwen/Qwen3-14B", machine(24), offload="cpu")
    assert set(map_of(plan).values()) == {0, "cpu"}
    (weights, *_) = plan.devices[0].terms
    kept, moved = (len(layers_on(plan)[place]) for place in (0, "cpu"))
    layer = plan.placement.offloaded_bytes["cpu"] // moved
    rest = weights.num_bytes - 2 * layer - kept * layer
    assert 0 < rest < 2 * 1.5 * GIB + 8 * MIB, "embedding and head, 1.45 GiB each"
    assert "for layers in RAM, which come one ahead" in weights.formula


@pytest.mark.parametrize(
    ("model", "cards", "fixed"),
    [
        ("Qwen/Qwen3-32B", (24, 24), {"offload": "cpu"}),  # two cards
        ("Qwen/Qwen3-30B-A3B", (24,), {"offload": "cpu"}),  # experts
        ("Qwen/Qwen3-32B", (24,), {"offload": "disk", "max_memory": "0=24GiB,cpu=8GiB"}),
    ],
)
def test_elsewhere_weights_come_module_by_module(model: str, cards: tuple[int, ...], fixed: dict[str, Any]) -> None:
    plan = plan_of(model, machine(*cards), **fixed)
    assert plan.placement.offloaded_bytes
    assert "one ahead" not in plan.devices[0].terms[0].formula
