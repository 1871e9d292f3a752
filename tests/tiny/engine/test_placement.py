"""Layers over several places, through the real loader and the paged batcher: in float32 every token is as it was.

"cpu:0" and "cpu:1" stand for two cards: accelerate hooks them up as devices of their own, and the cache is split by
them. On this machine all of them compute alike, so the answers must be plain transformers' to the last token.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import hooks
from transformers import AutoModelForCausalLM

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.engines.transformers.plan.module_map import ModuleMap
from qserve.engines.transformers.worker.batching.layer_cache import layer_devices
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore, score_prompts
from qserve.errors import DoesNotFit, UsageError
from qserve.hub import resolve
from qserve.model.load import load
from qserve.model.placement import in_names_of, offload_root, placement_arguments, remove_offload_folder
from qserve.planner import Plan, make_plan, plan_request
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate takes "cpu:0" for another device than "cpu", but a tensor that is moved there says "cpu"."""
    original = hooks.set_module_tensor_to_device

    def set_tensor(module: Any, name: str, device: Any, *args: Any, **kwargs: Any) -> None:
        original(module, name, "cpu" if str(device).startswith("cpu") else device, *args, **kwargs)

    monkeypatch.setattr(hooks, "set_module_tensor_to_device", set_tensor)


@pytest.fixture(scope="module")
def plain() -> Any:
    return AutoModelForCausalLM.from_pretrained(chat_model_path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose experts transformers joins while loading, so that they can't be read where they lie."""
    folder = tmp_path_factory.mktemp("experts")
    build("qwen3-moe").save_pretrained(folder)
    for file in chat_model_path().glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def plan_for(model: str, **fixed: Any) -> Plan:
    machine = replace(detect(), devices=())
    return make_plan(resolve(model), machine, plan_request(engine="transformers", dtype="float32", **fixed))


def placed(plan: Plan, device_map: dict[str, int | str]) -> Plan:
    return replace(plan, placement=replace(plan.placement, device_map=device_map))


async def assert_same_tokens(model: Any, reference: Any, num_tokens: int = 12) -> None:
    asked = prompts(3, 20, 33)
    wanted = [generated(reference, prompt, num_tokens) for prompt in asked]
    async with running(PagedBatcher, model, max_num_batched_tokens=64) as batcher:
        for turn in range(2):  # the second time, blocks of the first are shared
            jobs = [sequence(f"{turn}-{i}", prompt, num_tokens) for i, prompt in enumerate(asked)]
            assert await asyncio.gather(*(tokens_of(batcher, job) for job in jobs)) == wanted


async def test_layers_in_ram_and_on_disk(plain: Any) -> None:
    layers = plain.config.num_hidden_layers
    lies_on = {"": "cpu", f"model.layers.{layers - 1}": "disk", "model.layers.0": "disk"}
    plan = plan_for("demo", device_map=ModuleMap.parse(lies_on, "by-hand.json"))
    loaded = load(chat_model_path(), plan)
    assert loaded.model.hf_device_map["model.layers.0"] == "disk"
    on_disk = [name for name, p in loaded.model.named_parameters() if p.device.type == "meta"]
    assert {".".join(name.split(".")[:3]) for name in on_disk} == {"model.layers.0", f"model.layers.{layers - 1}"}
    await assert_same_tokens(loaded.model, plain)


async def test_the_planner_offloads_what_ram_may_not_hold(plain: Any) -> None:
    whole = plan_for("demo", max_model_len=256, max_num_seqs=1)
    device = whole.devices[0]
    allowed = device.runtime_bytes + device.activations_bytes + device.kv_cache_bytes + device.weights_bytes * 6 // 10
    plan = plan_for("demo", max_model_len=256, max_num_seqs=1, offload="disk", max_memory=f"cpu={allowed}")
    assert plan.fits
    assert isinstance(plan.placement.device_map, dict)
    assert set(plan.placement.device_map.values()) == {"cpu", "disk"}
    assert plan.placement.offloaded_bytes["disk"] + plan.devices[0].weights_bytes >= device.weights_bytes
    loaded = load(chat_model_path(), plan)
    assert loaded.weights_bytes == pytest.approx(plan.devices[0].weights_bytes, rel=0.03)
    await assert_same_tokens(loaded.model, plain)


def fake_cards(plain: Any, last_layer: str) -> dict[str, int | str]:
    """The first half of the layers on one card, the second on another, the last one in `last_layer`."""
    count = plain.config.num_hidden_layers
    names = [f"model.layers.{index}" for index in range(count)]
    halves: dict[str, int | str] = {
        name: "cpu:0" if index < count // 2 else "cpu:1" for index, name in enumerate(names)
    }
    halves[names[-1]] = last_layer
    first = {"model.embed_tokens": "cpu:0", "model.rotary_emb": "cpu:0", "lm_head": "cpu:0"}
    return {**first, **halves, "model.norm": "cpu:1"}


@pytest.mark.parametrize("last_layer", ["cpu:1", "cpu"])
@pytest.mark.usefixtures("two_cards")
async def test_two_cards_with_each_layers_cache_on_its_own(plain: Any, last_layer: str) -> None:
    plan = placed(plan_for("demo"), fake_cards(plain, last_layer))
    model = load(chat_model_path(), plan).model
    expected = [torch.device(place) for place in ("cpu:0", "cpu:1")]
    devices = layer_devices(model)
    assert devices[: len(devices) // 2] == [expected[0]] * (len(devices) // 2)
    # What is offloaded computes on one of the cards, and its cache lies there.
    assert set(devices) == set(expected)
    await assert_same_tokens(model, plain)
    model.set_attn_implementation("sdpa")  # as it was loaded
    async with running(PagedBatcher, model) as batcher:
        (allocator,) = batcher._library.manager.batch_processor.cache.cache_allocators.values()
        memory = [allocator._kv_token_views[i][0].untyped_storage() for i in range(len(devices))]
        # One piece of memory for each card, as large as its share of the layers; nothing else is held.
        assert len({piece.data_ptr() for piece in memory}) == 2
        assert [a == b for a, b in pairwise(devices)] == [a.data_ptr() == b.data_ptr() for a, b in pairwise(memory)]
        held = {piece.data_ptr(): piece.nbytes() for piece in memory}
        assert sum(held.values()) == batcher.kv_cache_bytes
        assert allocator.cache_tensor.device.type == "meta"


@pytest.mark.usefixtures("two_cards")
async def test_prompts_are_scored_over_two_cards(plain: Any) -> None:
    model = load(chat_model_path(), placed(plan_for("demo"), fake_cards(plain, "cpu"))).model
    asked = prompts(2, 30)
    async with running(PagedBatcher, model), running(PagedBatcher, plain):
        got = score_prompts(model, [PromptToScore(prompt, 1, None) for prompt in asked])
        wanted = score_prompts(plain, [PromptToScore(prompt, 1, None) for prompt in asked])
    assert got == wanted


async def test_fused_experts_are_written_to_a_private_folder_that_goes_away(experts: Path) -> None:
    by_hand = ModuleMap.parse({"": "cpu", "model.layers.2": "disk", "model.layers.3": "disk"}, "by-hand.json")
    loaded = load(experts, plan_for(str(experts), device_map=by_hand))
    (made,) = offload_root().iterdir()
    assert made.stat().st_mode & 0o077 == 0
    assert sum(file.stat().st_size for file in made.iterdir()) > 0
    reference = AutoModelForCausalLM.from_pretrained(experts, dtype=torch.float32).eval()
    await assert_same_tokens(loaded.model, reference, num_tokens=6)
    remove_offload_folder()
    assert not made.exists()


def test_folders_of_killed_processes_are_swept(experts: Path) -> None:
    dead, alive = offload_root() / "999999999-x", offload_root() / f"{os.getppid()}-x"
    for folder in (dead, alive):
        folder.mkdir(parents=True)
    by_hand = ModuleMap.parse({"": "cpu", "model.layers.3": "disk"}, "by-hand.json")
    placement_arguments(experts, plan_for(str(experts), device_map=by_hand))
    assert not dead.exists()
    assert alive.exists()


def test_a_worker_that_is_told_to_stop_removes_its_folder(tmp_path: Path) -> None:
    """uvicorn ends the process by SIGTERM once it has shut down: nothing after it runs, atexit neither."""
    told = (
        "import os, signal\n"
        "from qserve.worker import worker_process as worker; from qserve.model import placement\n"
        "(placement.offload_root() / f'{os.getpid()}-x').mkdir(parents=True)\n"
        "signal.signal(signal.SIGTERM, worker.on_term)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert list((tmp_path / "qserve" / "offload").iterdir()) == []


def test_a_full_disk_is_one_error_before_anything_is_loaded(experts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = ModuleMap.parse({"": "cpu", "model.layers.3": "disk"}, "by-hand.json")
    plan = plan_for(str(experts), device_map=by_hand)
    real = shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: real(path)._replace(free=1000))
    with pytest.raises(DoesNotFit, match=r"KiB of weights must be rewritten .* has 1000 B free"):
        load(experts, plan)


def test_a_disk_that_fills_up_while_loading_is_the_same_error(experts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(offload_root() / "experts.safetensors"))

    monkeypatch.setattr("transformers.integrations.accelerate.save_file", full)
    by_hand = ModuleMap.parse({"": "cpu", "model.layers.3": "disk"}, "by-hand.json")
    with pytest.raises(DoesNotFit, match=r"the disk is full: .*experts\.safetensors could not be written"):
        load(experts, plan_for(str(experts), device_map=by_hand))


def test_a_card_that_is_not_there(plain: Any) -> None:
    with pytest.raises(UsageError, match="modules on card 3, but torch sees no card here"):
        load(chat_model_path(), placed(plan_for("demo"), {"": 3}))


def test_a_driver_that_is_too_old_for_torch_is_one_sentence(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nMore of it.")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(UsageError, match=r"can't use the card: The NVIDIA driver .* \(found version 12020\)\. Install"):
        load(chat_model_path(), placed(plan_for("demo"), {"": 0}))


def test_a_map_is_brought_to_the_names_of_a_nested_model() -> None:
    """Vision-language classes nest the language model, and have modules that the plan does not know of."""
    inner = torch.nn.ModuleDict({"embed_tokens": torch.nn.Embedding(4, 2), "norm": torch.nn.Linear(2, 2)})
    inner["layers"] = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    outer = torch.nn.ModuleDict({"language_model": inner, "visual": torch.nn.Linear(2, 2)})
    model = torch.nn.ModuleDict({"model": outer, "lm_head": torch.nn.Linear(2, 4)})
    planned: dict[str, int | str] = {
        "model.embed_tokens": 0,
        "model.rotary_emb": 0,
        "model.layers.0": 0,
        "model.layers.1": "cpu",
        "model.norm": 1,
        "lm_head": 1,
    }
    assert in_names_of(model, planned) == {
        "model.language_model.embed_tokens": 0,
        "model.language_model.layers.0": 0,
        "model.language_model.layers.1": "cpu",
        "model.language_model.norm": 1,
        "lm_head": 1,
        "model.visual": 0,
    }
