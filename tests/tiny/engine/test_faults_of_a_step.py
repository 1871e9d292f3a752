"""An exception at any stage of a step fails the request whose it is; the others say what they say alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from qserve.engines.transformers.worker.batching.batcher import BatchLimits, Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.batching.scoring import PromptScorer
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler, Uniforms
from qserve.model.failures import SequenceFailed
from tests.tiny.engine import running as engine
from tests.tiny.engine.families import build
from tests.tiny.engine.running import choices_of, generated, idle, running, sequence, tokens_of

POISON = 998  # a token that only the sequence at fault has in its prompt
NUM_TOKENS = 12


def prompts(num: int, length: int) -> list[list[int]]:
    return [[token % POISON for token in prompt] for prompt in engine.prompts(num, length)]


@cache
def _reference() -> Any:
    return build("qwen3")


@cache
def _alone(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(generated(_reference(), list(prompt), NUM_TOKENS))


def alone(prompt: list[int]) -> list[int]:
    """What plain transformers makes of `prompt`: asked once, since every stage is tried with the same prompts."""
    return list(_alone(tuple(prompt)))


class Fault(Exception):
    """Injected."""


def has_poison(batcher: Any, stage: str) -> bool:
    """Whether the sequence at fault takes part in what is done now."""
    if isinstance(batcher, RowBatcher):
        scheduler = batcher._scheduler
        prefilling = [scheduler.prefilling] if scheduler.prefilling else []
        if batcher._faults.is_prefill_stage and prefilling:
            rows = prefilling
        else:
            rows = scheduler.rows or [*prefilling, *scheduler.waiting]
        return any(POISON in row.sequence.prompt_ids for row in rows)
    processor = batcher._library.manager.batch_processor
    scheduler = processor.scheduler
    if stage in PREPARING:
        states = [*scheduler.active_requests.values(), *scheduler.waiting_requests.values()]
    else:
        states = [future.state for future in processor.inputs_and_outputs.requests_in_batch]
    return any(POISON in state.logit_processor_kwargs["sequence"].prompt_ids for state in states)


def failing(original: Callable[..., Any], is_due: Callable[[], bool], *, before: bool = True) -> Callable[..., Any]:
    """`original`, with a fault before or after it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if before and is_due():
            raise Fault("injected")
        result = original(*args, **kwargs)
        if not before and is_due():
            raise Fault("injected")
        return result

    return call


PREPARING = [
    "scheduler.clear_cancelled_requests",
    "scheduler.schedule_batch",
    "cache.can_store_request_tokens",
    "inputs_and_outputs.prepare_batch_tensors",
]
PAGED_STAGES = [
    *PREPARING,
    "inputs_and_outputs.get_model_kwargs",
    "model_runner.compute_batch",
    "inputs_and_outputs.retrieve_device_outputs",
    "inputs_and_outputs.prepare_batch_update",
    "cache.mark_complete_blocks",
    "output_router.deliver_batch",
]
ROW_STAGES = [
    "_take_in",
    "_scheduler.allocate_pages",
    "_decode_forward",
    "_prefill_chunk",
    "_forward",
    "_choose",
    "_finish_step",
    "_scheduler.release",
]


def inject(batcher: Any, stage: str, is_due: Callable[[], bool], *, before: bool) -> None:
    owner = batcher if isinstance(batcher, RowBatcher) else batcher._library.manager.batch_processor
    *path, name = stage.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, name, failing(getattr(owner, name), is_due, before=before))


async def company(batcher: Any, poisoned: Sequence | None, asked: list[list[int]]) -> list[list[int]]:
    """What `asked` become beside the poisoned sequence, which must fail by the code of any failure."""
    tasks = [asyncio.create_task(tokens_of(batcher, sequence(f"r{i}", p, NUM_TOKENS))) for i, p in enumerate(asked)]
    if poisoned is not None:
        with pytest.raises(SequenceFailed, match="its log says why, under poisoned") as caught:
            await choices_of(batcher, poisoned)
        assert caught.value.code == "generation_failed"
        batcher.cancel(poisoned)
    return [await task for task in tasks]


CASES = [(PagedBatcher, stage) for stage in PAGED_STAGES] + [(RowBatcher, stage) for stage in ROW_STAGES]


@pytest.mark.parametrize(("kind", "stage"), CASES, ids=[f"{kind.__name__}-{stage}" for kind, stage in CASES])
async def test_the_request_at_fault_fails_and_no_other(
    kind: type[Any], stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The fault shows from the third step on in which the sequence takes part, and whenever it does after that."""
    model = build("qwen3")
    asked = prompts(4, 20)
    poisoned = sequence("poisoned", [*prompts(1, 40)[0], POISON], NUM_TOKENS)
    async with running(kind, model, max_num_batched_tokens=128) as batcher:
        inject(batcher, stage, lambda: len(poisoned.sampled_ids) >= 2 and has_poison(batcher, stage), before=True)
        if stage == "_prefill_chunk":  # not taken once it decodes: at fault from the beginning
            inject(batcher, stage, lambda: has_poison(batcher, stage), before=True)
        with caplog.at_level(logging.ERROR, logger="qserve.worker"):
            if stage in (
                "_scheduler.release",
                "output_router.deliver_batch",
            ):  # its end fails: it has all its tokens by then
                answers = await asyncio.gather(
                    tokens_of(batcher, poisoned),
                    *(tokens_of(batcher, sequence(f"r{i}", p, NUM_TOKENS)) for i, p in enumerate(asked)),
                )
                said = answers[1:]
            else:
                said = await company(batcher, poisoned, asked)
                assert "request poisoned failed" in caplog.text
        assert said == [alone(prompt) for prompt in asked]
        await idle(batcher)
        after = await company(batcher, None, asked[:1])
        assert after == [alone(asked[0])]


@pytest.mark.parametrize(("kind", "stage"), CASES, ids=[f"{kind.__name__}-{stage}" for kind, stage in CASES])
async def test_a_fault_that_does_not_come_back_fails_nobody_among_several(kind: type[Any], stage: str) -> None:
    model = build("qwen3")
    asked = prompts(4, 20)
    left = [1]

    def once() -> bool:
        is_due = bool(left) and batcher.load().num_running > 1
        return is_due and bool(left.pop())

    async with running(kind, model, max_num_batched_tokens=32) as batcher:
        inject(batcher, stage, once, before=False)
        failed: list[int] = []
        for index, task in enumerate(
            [asyncio.create_task(tokens_of(batcher, sequence(f"r{i}", p, NUM_TOKENS))) for i, p in enumerate(asked)]
        ):
            try:
                assert await task == alone(asked[index])
            except SequenceFailed:
                failed.append(index)
        assert not left, "the fault was not injected"
        assert len(failed) <= 1, "only one that the fault met alone"
        await idle(batcher)


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_a_sampler_that_fails_fails_alone(kind: type[Any]) -> None:
    """And is not run on: nobody waits for it."""
    model = build("qwen3")
    asked = prompts(3, 20)

    class Broken(Uniforms):
        def at(self, position: int) -> float:
            raise Fault("injected")

    broken = sequence("poisoned", prompts(1, 30)[0], 500, temperature=1.0)
    broken.sampler.uniforms = Broken(0)
    async with running(kind, model) as batcher:
        assert await company(batcher, broken, asked) == [alone(p) for p in asked]
        await idle(batcher)


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_what_always_fails_fails_every_request_and_the_thread_lives(kind: type[Any]) -> None:
    model = build("qwen3")
    asked = prompts(3, 20)
    async with running(kind, model) as batcher:
        broken = model.model.layers[-1].register_forward_pre_hook(lambda *_: 1 / 0)
        results = await asyncio.gather(
            *(choices_of(batcher, sequence(f"r{i}", p, 5)) for i, p in enumerate(asked)), return_exceptions=True
        )
        assert all(isinstance(one, SequenceFailed) and "ZeroDivisionError" in str(one) for one in results)
        broken.remove()
        assert await company(batcher, None, asked) == [alone(p) for p in asked]


@pytest.mark.parametrize("kind", [PagedBatcher, RowBatcher])
async def test_a_card_that_reports_an_error_ends_the_batcher(kind: type[Any]) -> None:
    """Its context is of no use any more: the worker must end and be started again."""
    died: list[BaseException] = []
    model = build("qwen3")
    batcher = kind(model, asyncio.get_running_loop(), BatchLimits(512, 4, 64))
    batcher.start(on_death=died.append)

    def report(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    model.model.layers[-1].register_forward_pre_hook(report)
    batcher.submit(sequence("one", [1, 2, 3], 5))
    async with asyncio.timeout(60):
        while not died:
            await asyncio.sleep(0.01)
    batcher.stop()
    assert isinstance(died[0], torch.AcceleratorError)


@pytest.mark.parametrize("where", ["forward", "sampler"])
async def test_a_prompt_whose_scoring_fails_fails_alone(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """In a row with others, which get their log-probabilities; and the thread scores what comes after."""
    model = build("qwen3")

    class Broken(SequenceSampler):
        def fresh(self) -> SequenceSampler:
            raise Fault("injected")

    def fail(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if where == "forward" and POISON in kwargs["input_ids"]:
            raise Fault("injected")

    async with running(PagedBatcher, model) as batcher:
        scorer = PromptScorer(model, batcher, asyncio.get_running_loop(), 4096)
        scorer.start()
        few = [PromptToScore(prompt, 1, None) for prompt in prompts(3, 50)]
        meant = await scorer.score(few)
        model.model.register_forward_pre_hook(fail, with_kwargs=True)
        sampler = Broken(SamplingParams(), [1]) if where == "sampler" else None
        bad = PromptToScore([*prompts(1, 30)[0], POISON], 1, sampler, "poisoned")
        with caplog.at_level(logging.ERROR, logger="qserve.worker"):
            together, failed = await asyncio.gather(scorer.score(few), scorer.score([bad]), return_exceptions=True)
        assert isinstance(failed, SequenceFailed)
        assert "under poisoned" in str(failed)
        assert "request poisoned failed" in caplog.text
        again = await scorer.score(few)
        scorer.stop()
    assert not isinstance(together, BaseException)
    for answers in (together, again):
        for one, same in zip(answers, meant, strict=True):
            assert one.logprobs[1:] == pytest.approx(same.logprobs[1:], abs=1e-5)
