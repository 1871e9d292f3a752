"""An allocation that fails in a step fails the request that asked for it; the others say what they say alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
import torch

from qserve.engines.transformers.worker.batching.batcher import BatchLimits
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.batching.scoring import PromptScorer
from qserve.engines.transformers.worker.engine import Engine, Generation, Piece
from qserve.errors import BrokenCheckpoint, DoesNotFit, QserveError
from qserve.model.failures import SequenceFailed
from qserve.model.out_of_memory import OutOfMemory, is_out_of_memory
from tests.tiny.engine.families import build
from tests.tiny.engine.running import choices_of, generated, idle, prompts, running, sequence, tokens_of

EXABYTE = 1 << 60
CASES = [("qwen3", PagedBatcher), ("qwen3", RowBatcher), ("qwen3.5", RowBatcher)]


def failing_when(model: Any, is_too_much: Callable[[torch.Tensor, torch.Tensor], bool]) -> None:
    """In the last layer, a real allocation that no machine can serve, when (ids, positions) of a forward say so."""
    seen: dict[str, torch.Tensor] = {}

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        seen.update(ids=kwargs["input_ids"], positions=kwargs["position_ids"])

    def allocate(module: Any, args: Any) -> None:
        if seen and is_too_much(seen["ids"], seen["positions"]):
            torch.empty(EXABYTE, dtype=torch.uint8)

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    model.model.layers[-1].register_forward_pre_hook(allocate)


def long_prompt(ids: torch.Tensor, positions: torch.Tensor) -> bool:
    """A forward that reads 200 tokens of prompts or more."""
    return ids.numel() >= 200


@pytest.mark.parametrize(("family", "kind"), CASES)
async def test_a_prompt_that_is_too_much_fails_alone(family: str, kind: type[Any]) -> None:
    reference, model = build(family), build(family)
    asked = prompts(6, 10)
    async with running(kind, model, max_num_batched_tokens=512) as batcher:
        failing_when(model, long_prompt)
        ones = [sequence(f"r{i}", prompt, 60, temperature=0.0) for i, prompt in enumerate(asked)]
        tasks = [asyncio.create_task(tokens_of(batcher, one)) for one in ones]
        # By then they have 230 tokens together: read again in one step they would be too much as well.
        while min(one.sampler.num_sampled for one in ones) < 10:
            await asyncio.sleep(0.001)
        with pytest.raises(
            OutOfMemory, match=r"prefilling 2\d\d tokens of its prompt.*--max-num-batched-tokens"
        ) as caught:
            await choices_of(batcher, sequence("too long", prompts(1, 230)[0], 5))
        assert caught.value.code == "out_of_memory"
        assert "you tried to allocate" in str(caught.value), "what was needed"
        assert [await task for task in tasks] == [generated(reference, prompt, 60) for prompt in asked]
        await idle(batcher)


@pytest.mark.parametrize(("family", "kind"), CASES)
async def test_decoding_that_is_too_much_fails_the_longest(family: str, kind: type[Any]) -> None:
    """And the others are read again: no state was moved twice, no token of theirs drawn twice."""
    reference, model = build(family), build(family)
    asked = prompts(4, 20)
    async with running(kind, model) as batcher:
        failing_when(model, lambda ids, positions: int(positions.max()) >= 100)
        ones = [sequence(f"r{i}", prompt, 40, temperature=0.0) for i, prompt in enumerate(asked)]
        sampled = [sequence(f"s{i}", asked[0], 40, temperature=1.0, seed=i) for i in range(2)]
        alone = [await tokens_of(batcher, one) for one in sampled]
        tasks = [asyncio.create_task(tokens_of(batcher, one)) for one in ones]
        again = [sequence(f"t{i}", asked[0], 40, temperature=1.0, seed=i) for i in range(2)]
        tasks += [asyncio.create_task(tokens_of(batcher, one)) for one in again]
        longest = sequence("longest", prompts(1, 80)[0], 60)
        with pytest.raises(OutOfMemory, match="decoding"):
            await choices_of(batcher, longest)
        assert longest.sampler.num_sampled == 21  # one after the prompt, and one after each of positions 80 to 99
        assert [await task for task in tasks] == [generated(reference, prompt, 40) for prompt in asked] + alone
        await idle(batcher)


async def test_a_row_of_prompts_that_is_too_much_is_scored_one_by_one() -> None:
    model = build("qwen3")
    async with running(PagedBatcher, model) as batcher:
        scorer = PromptScorer(model, batcher, asyncio.get_running_loop(), 4096)
        scorer.start()
        few = [PromptToScore(prompt, 1, None) for prompt in prompts(3, 50)]
        meant = await scorer.score(few)
        failing_when(model, long_prompt)
        too_long = asyncio.create_task(scorer.score([PromptToScore(prompts(1, 300)[0], 1, None)]))
        together = await scorer.score(few * 2)
        with pytest.raises(OutOfMemory, match="scoring 300 tokens"):
            await too_long
        scorer.stop()
    for one, same in zip(together, meant * 2, strict=True):
        assert one.logprobs[1:] == pytest.approx(same.logprobs[1:], abs=1e-5)


@pytest.mark.parametrize(("kind", "num_tokens"), [(PagedBatcher, 1 << 26), (RowBatcher, 1 << 30)])
async def test_a_pool_that_does_not_fit_is_a_memory_error(kind: type[Any], num_tokens: int) -> None:
    """Which the worker's main turns into one sentence. The first tensor is of 128 or 256 GiB."""
    batcher = kind(build("qwen3"), asyncio.get_running_loop(), BatchLimits(num_tokens, 4, 64))
    with pytest.raises(MemoryError, match=rf"a KV pool of {num_tokens} tokens"):
        batcher.start(on_death=print)


def test_what_counts_as_want_of_memory() -> None:
    with pytest.raises(RuntimeError) as cpu:
        torch.empty(EXABYTE, dtype=torch.uint8)
    assert is_out_of_memory(cpu.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(SequenceFailed("you tried to allocate"))


@pytest.mark.parametrize(("error", "kind"), [(OutOfMemory, DoesNotFit), (SequenceFailed, BrokenCheckpoint)])
async def test_a_warm_up_without_memory_is_no_fault_of_the_checkpoint(
    error: type[SequenceFailed], kind: type[QserveError]
) -> None:
    class Poor(Engine):
        def __init__(self) -> None:
            self.eos_token_ids = frozenset({7})

        async def generate(self, generation: Generation) -> AsyncGenerator[Piece]:
            raise error("no more")
            yield

    with pytest.raises(kind, match="the model can't be used: no more"):
        await Poor().warm_up(2048)
