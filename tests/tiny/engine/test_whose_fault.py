"""Whatever fails at any stage of a step, in company of any size: exactly the request whose it is fails.

The others say to the last token what they say without it, however many faulty ones come beside them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from qserve.engines.transformers.worker.batching import library_callbacks
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.continuous import LibraryLoop
from qserve.engines.transformers.worker.batching.library_rows import LibraryRows
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.batching.rows.cache import RowCache
from qserve.engines.transformers.worker.batching.rows.scheduler import RowScheduler
from qserve.engines.transformers.worker.batching.turns import Turns
from qserve.engines.transformers.worker.decoding.buffers import DecodeBuffers
from qserve.engines.transformers.worker.decoding.compiled import CompiledForwards, CompiledTables
from qserve.engines.transformers.worker.decoding.forward import Forwards
from qserve.engines.transformers.worker.sampling import batch, penalties, sampler
from qserve.engines.transformers.worker.sampling.adjust import Adjustment
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.model.failures import SequenceFailed
from tests.tiny.engine.late_masks import gated
from tests.tiny.engine.paths import PATHS
from tests.tiny.engine.running import choices_of, idle, prompts, running, sequence

POISON = 998
NUM_TOKENS = 10
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"num_logprobs": 3},
    {"temperature": 0.8, "top_p": 0.9, "num_logprobs": 0},
    {"temperature": 1.0, "repetition_penalty": 1.2},
    {"grammar": True},
    {"temperature": 1.1, "top_k": 20},
    {"temperature": 0.7, "grammar": True, "logit_bias": {5: 3.0}},
]


class Fault(Exception):
    """Injected."""


@pytest.fixture(scope="module", autouse=True)
def only_new_garbage() -> None:
    """A failed step collects garbage: hundreds of times here, each over all that earlier tests of the process left."""
    gc.collect()
    gc.freeze()


def made(name: str, prompt: list[int], index: int) -> Sequence:
    """The `index`-th kind of request."""
    asked = {"seed": index, **KINDS[index % len(KINDS)]}
    if asked.pop("grammar", False):
        asked["grammar"] = gated(0, is_open=True)[0]
    return sequence(name, prompt, NUM_TOKENS, **asked)


def mixed(num: int, run: str) -> list[Sequence]:
    """Requests of all kinds: of short and of long prompts, which are read in pieces, some of them several times."""
    asked = [[token % POISON for token in prompt] for prompt in prompts(num, 9, step=3)]
    asked = [prompt * 6 if index % 9 == 8 else prompt for index, prompt in enumerate(asked)]
    asked = [asked[index - 1] if index % 5 == 4 else prompt for index, prompt in enumerate(asked)]
    return [made(f"{run} {index}", prompt, index) for index, prompt in enumerate(asked)]


def in_step(batcher: Any) -> Iterable[Sequence]:
    """Whose step it is."""
    if isinstance(batcher, RowBatcher):
        scheduler = batcher._scheduler
        if batcher._faults.is_prefill_stage and scheduler.prefilling is not None:
            return [scheduler.prefilling.sequence]
        return [row.sequence for row in scheduler.rows]
    return [entry.sequence for entry in batcher._stages._stages.in_step()] or batcher._library.scheduled()


def has_poison(some: Iterable[Any]) -> bool:
    """Among sequences or samplers."""
    return any(POISON in one.prompt_ids for one in some)


@dataclass
class Stage:
    """A function that steps go through. `of`: its arguments that name whom it works for; else all in the step."""

    owner: Any
    name: str
    of: Callable[..., Iterable[Any]] | None = None
    fails_alone: bool = True
    """Whether one that runs alone comes through it; else the faulty one may get its answer."""

    @property
    def where(self) -> str:
        return f"{getattr(self.owner, '__name__', '').rsplit('.', 1)[-1]}.{self.name}"


EVERYWHERE = [
    Stage(batch.BatchSampler, "draw", lambda _, samplers, *__, **___: samplers),
    Stage(batch, "_known_before", lambda samplers, _: samplers),
    Stage(batch._Rows, "__init__", lambda _, samplers, *__: samplers),
    Stage(Adjustment, "__call__", lambda _, __, samplers, *___: samplers),
    Stage(Adjustment, "_bind_on_host"),
    Stage(penalties.SeenTokens, "_begin", lambda _, samplers, *__: samplers),
    Stage(batch, "_described"),
    Stage(batch.Drawn, "choices", lambda drawn: drawn.samplers),
    Stage(batch.Drawn, "_taken", lambda _, one, __: [one]),
    Stage(sampler.SequenceSampler, "record", lambda one, _: [one]),
    Stage(Sequence, "note", lambda one, _: [one] if not one.is_complete and len(one.sampled_ids) > 3 else []),
]
OF_LIBRARY = [
    Stage(LibraryLoop, "add", lambda _, one: [one]),
    Stage(Turns, "put", lambda _, one, **__: [one]),
    Stage(FIFOScheduler, "schedule_batch"),
    Stage(PagedAttentionCache, "can_store_request_tokens"),
    Stage(PagedAttentionCache, "mark_complete_blocks"),
    Stage(ContinuousBatchingIOs, "prepare_batch_tensors"),
    Stage(ContinuousBatchingIOs, "get_model_kwargs"),
    Stage(ContinuousBatchingIOs, "prepare_batch_update"),
    Stage(library_callbacks.Sampling, "prepare_tensor_args"),
    Stage(library_callbacks.Sampling, "__call__"),
]
OF_RUNS = [
    Stage(LibraryRows, "decoding"),
    Stage(LibraryRows, "grow", lambda _, row: [row.sequence], fails_alone=False),
    Stage(LibraryRows, "write_back", lambda _, row: [row.sequence], fails_alone=False),
]
STAGES = {
    "library_steps": [*OF_LIBRARY, Stage(torch.nn.Embedding, "forward")],
    "runs_of_a_card": [*OF_LIBRARY, *OF_RUNS, Stage(Forwards, "__call__"), Stage(DecodeBuffers, "fill")],
    "compiled_runs": [*OF_LIBRARY, *OF_RUNS, Stage(CompiledForwards, "__call__"), Stage(CompiledTables, "fill")],
    "rows": [
        Stage(Turns, "put", lambda _, one, **__: [one.sequence]),
        *(Stage(RowScheduler, name) for name in ("admit", "allocate_pages", "going_on", "prefilled")),
        *(Stage(RowCache, name) for name in ("decode", "read_prompt", "assign")),
        Stage(torch.nn.Embedding, "forward"),
        *(Stage(RowBatcher, name) for name in ("_decode_forward", "_prefill_chunk", "_choose", "_finish_step")),
    ],
}
# What draws is the same on all paths: some of it is enough where another ran all.
DRAWS = {"library_steps": EVERYWHERE, "rows": EVERYWHERE}


@dataclass
class Injected:
    """Where it is `armed`, the stage fails wherever a faulty sequence takes part in a step of `batcher`."""

    stage: Stage
    batcher: Any = None
    armed: bool = False
    num_hits: int = 0

    def into(self, patched: pytest.MonkeyPatch) -> Injected:
        """Before a batcher is made: it keeps bound methods."""
        original = getattr(self.stage.owner, self.stage.name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.armed and has_poison(self._involved(*args, **kwargs)):
                self.num_hits += 1
                raise Fault("injected")
            return original(*args, **kwargs)

        patched.setattr(self.stage.owner, self.stage.name, call)
        return self

    def _involved(self, *args: Any, **kwargs: Any) -> Iterable[Any]:
        return in_step(self.batcher) if self.stage.of is None else self.stage.of(*args, **kwargs)


async def said(batcher: Any, some: list[Sequence]) -> list[list[TokenChoice] | SequenceFailed]:
    """What each became; those that nobody waits for are cancelled, as the engine does."""

    async def one_of(one: Sequence) -> list[TokenChoice] | SequenceFailed:
        try:
            return await choices_of(batcher, one)
        except SequenceFailed as error:
            return error
        finally:
            batcher.cancel(one)

    return await asyncio.gather(*(one_of(one) for one in some))


def faulty(name: str, num_tokens: int = 70) -> Sequence:
    """It goes through every stage: drawn, penalised, bound, described, of a prompt in pieces, and growing."""
    prompt = [*(token % POISON for token in prompts(1, 70)[0]), POISON]
    everything = {"repetition_penalty": 1.1, "num_logprobs": 2, "logit_bias": {3: 1.0}, "temperature": 1.0, "seed": 1}
    return sequence(name, prompt, num_tokens, grammar=gated(0, is_open=True)[0], **everything)


def same(ours: Any, meant: Any, path: str = "") -> bool:
    """Tokens, and log-probabilities but for rounding.

    Compiled steps are in bf16, where tokens that are read again are rounded otherwise than those that were decoded.
    """
    if isinstance(ours, SequenceFailed) or len(ours) != len(meant):
        return False
    if path == "compiled_runs":
        return True
    if [one.token_id for one in ours] != [one.token_id for one in meant]:
        return False
    pairs = [(a.logprob, b.logprob) for a, b in zip(ours, meant, strict=True) if b.logprob is not None]
    return all(a == pytest.approx(b, abs=2e-2) for a, b in pairs)


def settled(batcher: Any) -> bool:
    """Nothing is held: no sequence, no page that is not only kept for who comes with the same prompt."""
    if isinstance(batcher, RowBatcher):
        return batcher._scheduler._pages.num_free == batcher._scheduler.num_pages
    cache = batcher._library.processor.cache
    return not any(allocator.block_table for allocator in cache.cache_allocators.values())


async def until_settled(batcher: Any, where: str) -> None:
    """The thread of the batcher gives pages back after it has told what failed."""
    for _ in range(1000):
        if settled(batcher):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{where}: something is still held")


@pytest.mark.parametrize("path", STAGES)
async def test_exactly_the_one_at_fault_fails(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In company of eight requests of all kinds, when it has drawn some tokens or before; and then alone.

    One stage fails after the other: the company of the next one shows that nothing stays behind.
    """
    kind, model = PATHS[path](monkeypatch)
    stages = [*DRAWS.get(path, EVERYWHERE[::4]), *STAGES[path]]
    faults = [Injected(stage).into(monkeypatch) for stage in stages]
    async with running(kind, model, max_num_batched_tokens=64, max_num_seqs=6) as batcher:
        meant = await said(batcher, mixed(8, "meant"))
        for fault in faults:
            where, fault.batcher, fault.armed = fault.stage.where, batcher, True
            *found, failed = await said(batcher, [*mixed(8, f"beside {where}"), faulty(f"bad {where}")])
            assert fault.num_hits, f"{where}: the fault was not injected"
            if fault.stage.fails_alone:
                assert isinstance(failed, SequenceFailed) and failed.code == "generation_failed", where
            assert [same(one, other, path) for one, other in zip(found, meant, strict=True)] == [True] * 8, where
            (alone,) = await said(batcher, [faulty(f"alone {where}")])
            assert isinstance(alone, SequenceFailed) or not fault.stage.fails_alone, where
            await idle(batcher)
            await until_settled(batcher, where)
            fault.armed = False
        after = await said(batcher, mixed(8, "after"))
        assert all(same(one, other, path) for one, other in zip(after, meant, strict=True))


FORWARDS = {"library_steps": torch.nn.Embedding, "rows": torch.nn.Embedding, "compiled_runs": CompiledForwards}
SIZES = [1, 24]


@pytest.mark.parametrize("num", SIZES)
@pytest.mark.parametrize("path", FORWARDS)
async def test_in_company_of_any_size(path: str, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults in the forward and in the draw, of several at once: half of them from the first step, half from later."""
    kind, model = PATHS[path](monkeypatch)
    owner = FORWARDS[path]
    forward = Injected(Stage(owner, "forward" if owner is torch.nn.Embedding else "__call__")).into(monkeypatch)
    draw = Injected(Stage(batch.BatchSampler, "draw", lambda _, some, *__, **___: _late_poison(some))).into(monkeypatch)
    async with running(kind, model, max_num_batched_tokens=256, max_num_seqs=num + 2, kv_cache_tokens=16384) as batcher:
        forward.batcher = draw.batcher = batcher
        meant = await said(batcher, mixed(num, "meant"))
        forward.armed = draw.armed = True
        early, late = faulty("early"), made("late", [LATE_POISON, 1, 2], 1)
        *found, first, second = await said(batcher, [*mixed(num, "ours"), early, late])
        assert isinstance(first, SequenceFailed) and isinstance(second, SequenceFailed)
        assert [same(one, other, path) for one, other in zip(found, meant, strict=True)] == [True] * num
        await idle(batcher)
        await until_settled(batcher, "afterwards")


LATE_POISON = 999


def _late_poison(some: Iterable[Any]) -> Iterable[Any]:
    """Those whose fault shows when they have drawn a few tokens."""
    is_due = any(LATE_POISON in one.prompt_ids and len(one.drawn) > 2 for one in some)
    return [sequence("due", [POISON], 1).sampler] if is_due else []


@pytest.mark.parametrize("path", FORWARDS)
async def test_one_faulty_request_after_the_other_fails_nobody_else(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside requests that go on all the time: that they were in many failed steps is nothing against them."""
    kind, model = PATHS[path](monkeypatch)
    owner = FORWARDS[path]
    fault = Injected(Stage(owner, "forward" if owner is torch.nn.Embedding else "__call__")).into(monkeypatch)
    asked = [[token % POISON for token in prompt] for prompt in prompts(6, 20)]
    async with running(kind, model, max_num_seqs=8) as batcher:
        fault.batcher = batcher
        meant = await said(batcher, [sequence(f"meant {i}", prompt, 60) for i, prompt in enumerate(asked)])
        fault.armed = True
        ours = asyncio.create_task(said(batcher, [sequence(f"ours {i}", p, 60) for i, p in enumerate(asked)]))
        for index in range(10):
            (failed,) = await said(batcher, [sequence(f"bad {index}", [POISON, index], 30)])
            assert isinstance(failed, SequenceFailed)
        assert [same(one, other, path) for one, other in zip(await ours, meant, strict=True)] == [True] * 6


@pytest.mark.parametrize("path", PATHS)
async def test_a_fault_of_nobody_fails_nobody(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth draw fails, whoever is in it; and then every draw of more than one."""
    kind, model = PATHS[path](monkeypatch)
    original, calls, state = batch.BatchSampler.draw, [0], {"is_due": lambda some: False}

    def draw(self: Any, samplers: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if state["is_due"](samplers):
            raise Fault("injected")
        return original(self, samplers, *args, **kwargs)

    monkeypatch.setattr(batch.BatchSampler, "draw", draw)
    async with running(kind, model, max_num_batched_tokens=64, max_num_seqs=6) as batcher:
        meant = await said(batcher, mixed(8, "meant"))
        for name, is_due in (("fifth", lambda _: calls[0] % 5 == 0), ("shared", lambda some: len(some) > 1)):
            state["is_due"] = is_due
            found = await said(batcher, mixed(8, name))
            assert [same(one, other, path) for one, other in zip(found, meant, strict=True)] == [True] * 8, name
        await idle(batcher)
        await until_settled(batcher, "afterwards")
