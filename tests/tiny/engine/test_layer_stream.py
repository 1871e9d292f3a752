"""Layers in RAM beside a card: copied one ahead, each once a forward, and never read before they have come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import hooks
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from qserve.demo import chat_model_path
from qserve.detect import detect
from qserve.engines.transformers.kernels.kv_pages import PAGE_TOKENS
from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.attention.pages import gathered
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding import stages
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.choose import Layers
from qserve.hub import resolve
from qserve.model import layer_stream
from qserve.model.layer_stream import LayerStream, stream_offloaded
from qserve.model.load import load
from qserve.planner import make_plan, plan_request
from qserve.units import GIB, MIB
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of

CPU = torch.device("cpu")


class Late:
    """Copies arrive when they are waited for, and no sooner; of two to one buffer the second, as on a stream."""

    def __init__(self) -> None:
        self.under_way: dict[int, tuple[Sequence[torch.Tensor], torch.Tensor]] = {}
        self.order: list[str] = []

    def copy(self, pieces: Sequence[torch.Tensor], target: torch.Tensor, buffer: int) -> None:
        target.fill_(255)  # what a layer that does not wait would read: NaNs
        self.under_way[buffer] = pieces, target
        self.order.append("copy")

    def wait(self, buffer: int) -> None:
        if buffer in self.under_way:
            pieces, target = self.under_way.pop(buffer)
            target.copy_(torch.cat(list(pieces)))
        self.order.append("wait")


def streamed(first: int, lane: Any = None) -> tuple[Any, LayerStream]:
    model = build("qwen3")
    return model, LayerStream(model.model.layers[first:], CPU, lane)


@pytest.mark.parametrize("first", [0, 1, 2, 3])  # an even number, an odd one, two and one
@pytest.mark.parametrize("least_piece_bytes", [MIB, 512])  # one piece a layer, and several
async def test_answers_are_those_of_generate(
    first: int, least_piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_stream, "_LEAST_PIECE_BYTES", least_piece_bytes)
    model, stream = streamed(first, Late())
    reference = build("qwen3")
    asked = prompts(3, 20, 33)
    async with running(PagedBatcher, model, max_num_batched_tokens=32) as batcher:
        for number, prompt in enumerate(asked):
            said = await tokens_of(batcher, sequence(f"r{number}", prompt, 8))
            assert said == generated(reference, prompt, 8)
    assert stream.num_copies > 0
    assert (len(stream._held[0]) > 3) is (least_piece_bytes == 512)


async def test_runs_of_decoding_steps_find_their_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the path that cards take, whose body calls a layer's hooks and not the layer."""
    monkeypatch.setattr(paged, "choose_kernel", lambda *_: ChosenKernel("gathered", gathered, PAGE_TOKENS, {}))
    monkeypatch.setattr(paged, "decodes_in_runs", lambda *_: True)
    monkeypatch.setattr(stages, "choose_layers", lambda model: Layers(DenseSteps.of(model), None))
    lane = Late()
    model, stream = streamed(1, lane)
    assert DenseSteps.of(model) is not None
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model, captures=False) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 8)) == generated(build("qwen3"), prompt, 8)
    assert lane.order.count("wait") >= 8 * len(stream._layers)


def test_each_layer_is_copied_once_a_forward_and_one_ahead() -> None:
    lane = Late()
    model, stream = streamed(1, lane)
    count = len(stream._layers)
    assert count > 2
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        model(ids)
        assert lane.order[:4] == ["copy", "copy", "wait", "copy"]  # its own, the next one, and then it computes
        before, lane.order[:] = stream.num_copies, []
        model(ids)
    assert stream.num_copies - before == count
    assert lane.order == ["copy", "wait"] * count


@pytest.mark.parametrize("num_bytes", [1, MIB - 1, MIB, MIB + 1, 974_143_488, 33 * GIB + 5])
def test_pieces_are_powers_of_two_and_waste_less_than_the_least(num_bytes: int) -> None:
    """So torch, which pins powers of two, adds nothing: a layer of Qwen3-32B (974 MB) would take 1.07 GB whole."""
    sizes = layer_stream._piece_sizes(num_bytes)
    assert all(size & (size - 1) == 0 for size in sizes)
    assert 0 <= sum(sizes) - num_bytes < MIB
    assert sizes == sorted(sizes, reverse=True)


def test_ram_does_not_hold_a_layer_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken over is given back before the next layer is."""
    model = build("qwen3")
    first = model.model.layers[0].mlp.up_proj.weight
    places = []
    taken = LayerStream._taken
    monkeypatch.setattr(
        LayerStream, "_taken", lambda self, layer: (places.append(first.data.data_ptr()), taken(self, layer))[1]
    )
    stream = LayerStream(model.model.layers, CPU)
    assert places[1] in range(stream._buffers[0].data_ptr(), stream._buffers[0].data_ptr() + len(stream._buffers[0]))
    assert places[0] != places[1]


def test_copies_are_all_that_a_forward_does_beside() -> None:
    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: Counter[str] = Counter()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names[str(func)] += 1
            return func(*args, **(kwargs or {}))

    ids = torch.tensor([[5, 6, 7]])
    counts = []
    for model in (build("qwen3"), streamed(0)[0]):
        with torch.no_grad():
            model(ids)
            with Operations() as operations:
                model(ids)
        counts.append(operations.names)
    plain, beside = counts
    num = len(model.model.layers)
    assert beside - plain == Counter({"aten.copy_.default": num, "aten.slice.Tensor": num})  # and where a copy goes
    assert not plain - beside


def test_a_forward_that_was_broken_off_is_followed_by_a_whole_one() -> None:
    model, _ = streamed(0, Late())
    ids = torch.tensor([[5, 6, 7]])

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with torch.no_grad():
        wanted = build("qwen3")(ids).logits
        hook = model.model.layers[2].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            model(ids)
        hook.remove()
        assert torch.equal(model(ids).logits, wanted)


def test_layers_that_differ_are_not_streamed() -> None:
    model = build("qwen3")
    model.model.layers[1].mlp.up_proj = torch.nn.Linear(8, 8, bias=False)
    with pytest.raises(ValueError, match="differ in shape"):
        LayerStream(model.model.layers, CPU)


async def test_a_model_with_layers_in_ram_is_streamed_from_where_accelerate_put_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ "cpu:0" stands for the card."""
    original = hooks.set_module_tensor_to_device

    def set_tensor(module: Any, name: str, device: Any, *args: Any, **kwargs: Any) -> None:
        original(module, name, "cpu" if str(device).startswith("cpu") else device, *args, **kwargs)

    monkeypatch.setattr(hooks, "set_module_tensor_to_device", set_tensor)
    plain = AutoModelForCausalLM.from_pretrained(chat_model_path(), dtype=torch.float32).eval()
    request = plan_request(engine="transformers", dtype="float32")
    plan = make_plan(resolve("demo"), replace(detect(), devices=()), request)
    names = [f"model.layers.{index}" for index in range(plain.config.num_hidden_layers)]
    placed: dict[str, int | str] = dict.fromkeys(["model.embed_tokens", "model.rotary_emb", "lm_head"], "cpu:0")
    placed |= {name: "cpu" if index > 0 else "cpu:0" for index, name in enumerate(names)}
    placed["model.norm"] = "cpu:0"
    model = load(chat_model_path(), replace(plan, placement=replace(plan.placement, device_map=placed))).model
    assert not any(hasattr(module, "_hf_hook") for module in model.modules())
    assert len(model.model.layers[1]._forward_pre_hooks) == 1
    assert len(model.model.layers[0]._forward_pre_hooks) == 0
    assert stream_offloaded(plain) is None
    prompt = prompts(1, 20)[0]
    async with running(PagedBatcher, model) as batcher:
        assert await tokens_of(batcher, sequence("one", prompt, 8)) == generated(plain, prompt, 8)
