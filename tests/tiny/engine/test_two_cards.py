"""Whole answers over two cards, where tensors of one may not meet those of the other (`cards.Cards`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from accelerate import dispatch_model, hooks
from transformers import PreTrainedModel

from qserve.engines.transformers.worker.attention import packed
from qserve.engines.transformers.worker.batching.layer_cache import layer_devices
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore, score_prompts
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from tests.tiny.engine.cards import Cards
from tests.tiny.engine.families import build
from tests.tiny.engine.running import generated, prompts, running, sequence, tokens_of

CASES = [("qwen3", PagedBatcher), ("qwen3", RowBatcher), ("qwen3.5", RowBatcher)]
FIRST = torch.device("cpu:0")


@pytest.fixture(autouse=True)
def _cards(monkeypatch: pytest.MonkeyPatch) -> None:
    place = hooks.set_module_tensor_to_device

    def placed(module: Any, name: str, device: Any, *args: Any, **kwargs: Any) -> None:
        place(module, name, "cpu" if str(device).startswith("cpu") else device, *args, **kwargs)

    monkeypatch.setattr(hooks, "set_module_tensor_to_device", placed)
    monkeypatch.setattr(PreTrainedModel, "device", property(lambda model: FIRST))


def over_two_cards(model: Any) -> Any:
    """Layers in halves; the head lies with the embedding, as it does where they share a weight."""
    count = len(model.get_decoder().layers)
    layers = {f"model.layers.{index}": f"cpu:{int(index >= count // 2)}" for index in range(count)}
    first = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "lm_head"), "cpu:0")
    return dispatch_model(model, {**first, **layers, "model.norm": "cpu:1"}, main_device="cpu:0", force_hooks=True)


def guard(monkeypatch: pytest.MonkeyPatch, batcher: Any, cards: Cards) -> None:
    """Every step of `batcher` inside of `cards`."""

    def inside(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            with cards.step():
                return original(*args)

        return step

    if isinstance(batcher, RowBatcher):
        monkeypatch.setattr(batcher, "_decode_forward", inside(batcher._decode_forward))
        monkeypatch.setattr(batcher, "_prefill_chunk", inside(batcher._prefill_chunk))
        return
    processor = batcher._library.manager.batch_processor
    (allocator,) = processor.cache.cache_allocators.values()
    for layer, device in enumerate(layer_devices(batcher._model)):
        cards.put(allocator._kv_token_views[layer][0], device)
    monkeypatch.setattr(processor, "_generation_step", inside(processor._generation_step))


@pytest.mark.parametrize(("family", "kind"), CASES)
async def test_answers_are_those_of_one_card(monkeypatch: pytest.MonkeyPatch, family: str, kind: type[Any]) -> None:
    model, asked = over_two_cards(build(family)), prompts(3, 20, 33)
    cards, plain = Cards(model), build(family)
    monkeypatch.setattr(packed, "_device_of", cards.device_of)
    wanted = [generated(plain, prompt, 8) for prompt in asked]
    async with running(kind, model, max_num_batched_tokens=64) as batcher:
        guard(monkeypatch, batcher, cards)
        jobs = [sequence(f"r{index}", prompt, 8) for index, prompt in enumerate(asked)]
        assert await asyncio.gather(*(tokens_of(batcher, job) for job in jobs)) == wanted
    assert cards.seen == {0, 1}


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_prompts_are_scored_and_continued(monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    model, prompt = over_two_cards(build("qwen3")), prompts(1, 30)[0]
    cards = Cards(model)
    monkeypatch.setattr(packed, "_device_of", cards.device_of)
    async with running(kind, model):
        sampler = SequenceSampler(SamplingParams(temperature=1.0, seed=1), prompt)
        with cards.step():
            (scored,) = score_prompts(model, [PromptToScore(prompt, 2, sampler)])
    assert len(scored.logprobs) == 30
    assert scored.next_token is not None
    assert cards.seen == {0, 1}


@dataclass
class Counts:
    """What steps did beside arithmetic, all layers together."""

    num_steps: int = 0
    num_steps_made: int = 0
    num_waits: int = 0
    num_moved_indices: int = 0


async def counted(monkeypatch: pytest.MonkeyPatch, kind: type[Any], model: Any) -> Counts:
    """Of a prompt and nine tokens that follow; waits are counted inside the model alone."""
    counts, cards = Counts(), Cards(model)
    monkeypatch.setattr(packed, "_device_of", cards.device_of)
    make, tolist, forward = packed._make_decoding_step, torch.Tensor.tolist, model.get_decoder().forward
    is_inside = False

    def body(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        counts.num_steps += 1
        is_inside = True
        try:
            return forward(*args, **kwargs)
        finally:
            is_inside = False

    def made(*args: Any) -> Any:
        counts.num_steps_made += 1
        return make(*args)

    def waiting(tensor: torch.Tensor) -> Any:
        counts.num_waits += is_inside
        return tolist(tensor)

    async with running(kind, model) as batcher:
        guard(monkeypatch, batcher, cards)
        with monkeypatch.context() as patched:
            patched.setattr(model.get_decoder(), "forward", body)
            patched.setattr(packed, "_make_decoding_step", made)
            patched.setattr(torch.Tensor, "tolist", waiting)
            await tokens_of(batcher, sequence("one", prompts(1, 30)[0], 10))
    counts.num_moved_indices = cards.num_moved_indices
    return counts


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_a_step_costs_as_much_in_eight_layers_as_in_four(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    """Rebuilt or copied in each layer, the facts of a step would make the host wait for the card in each."""
    of_four, of_eight = [
        await counted(monkeypatch, kind, over_two_cards(build("qwen3", num_layers=count))) for count in (4, 8)
    ]
    assert of_four == of_eight
    assert of_four.num_steps == 10
    if kind is PagedBatcher:  # bounds of queries and keys of the prompt; then those of the keys
        assert (of_four.num_steps_made, of_four.num_waits) == (9, 2 + 9)
    else:
        assert of_four.num_waits == 0
