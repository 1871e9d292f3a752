"""Greedy answers that a grammar binds, by a head that computes the likeliest tokens alone: as by the whole head."""

from __future__ import annotations

import asyncio
import re

import pytest
import torch

from qserve.core import shortlist as core
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.decoding.compiled import CompiledRun
from qserve.engines.transformers.worker.sampling.batch import _Known
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.grammar.structured import structured_grammar
from qserve.model import packed_linear
from qserve.model.cpu import build, shortlist
from qserve.model.cpu.kernels import can_attend
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.shortlist import ShortlistHead
from qserve.wire.structured import StructuredOutputs
from tests.tiny.engine.families import build as model_of
from tests.tiny.engine.running import prompts, running, sequence, tokens_of
from tests.tiny.engine.test_guidance import END, TOKENIZER, VOCAB, guide

PATTERN = "[^e]{30,60}"
pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))


def test_they_are_those_of_the_whole_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a free answer, and by a grammar that allows about half of what a random model finds likeliest."""
    if not takes_bfloat16() or not can_attend(32):
        pytest.skip("this processor has no steps in one call")
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
    monkeypatch.setattr(core, "SHORTLIST_FROM_BYTES", 0)
    monkeypatch.setattr(shortlist, "_MOST_CHOSEN", 1.0)
    model = model_of("qwen3", num_layers=2)
    model.resize_token_embeddings(VOCAB, mean_resizing=False)
    model = model.bfloat16()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    packed_linear.pack_linears(model)
    head = model.get_output_embeddings()
    assert isinstance(head, ShortlistHead)
    partial: list[bool] = []
    step, forward = CompiledRun.step, ShortlistHead.forward

    def product(one: ShortlistHead, x: torch.Tensor) -> torch.Tensor:
        logits = forward(one, x)
        partial.append(bool(torch.isneginf(logits).any()))
        return logits

    steps: list[int] = []
    allowed: list[bool] = []
    allow = _Known.allow
    monkeypatch.setattr(_Known, "allow", lambda *of: allowed.append(allow(*of)) or allowed[-1])
    monkeypatch.setattr(CompiledRun, "step", lambda run: steps.append(1) or step(run))
    monkeypatch.setattr(ShortlistHead, "forward", product)
    grammar = structured_grammar(StructuredOutputs.model_validate({"regex": PATTERN}))
    guides = [guide(grammar), None]

    async def twice() -> tuple[list[list[int]], list[list[int]], list[bool]]:
        async with running(PagedBatcher, model) as batcher:
            found = await answers(batcher, guides)
            of_short = partial.copy()
            del partial[:]
            monkeypatch.setattr(shortlist, "SHORTLIST_ROWS", 0)
            return found, await answers(batcher, guides), of_short

    found, meant, of_short = asyncio.run(twice())
    assert found == meant
    assert len(steps) > 5
    assert not any(partial)
    assert any(of_short)
    assert {True, False} <= set(allowed), "of some steps all logits are asked for, of others not"
    for ids in found[:1]:
        assert re.fullmatch(PATTERN, TOKENIZER.decode(ids[:-1]))


async def answers(batcher: PagedBatcher, guides: list[AnswerGrammar | None]) -> list[list[int]]:
    """Of a sequence for each of `guides`, together."""
    ones = [
        sequence(f"r{i}", prompt, 60, grammar=guide, stop_token_ids=frozenset({END}) if guide else frozenset())
        for i, (prompt, guide) in enumerate(zip(prompts(2, 20), guides, strict=True))
    ]
    return await asyncio.gather(*(tokens_of(batcher, one) for one in ones))
