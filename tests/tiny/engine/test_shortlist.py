"""The head that computes the likeliest tokens alone: equal to the whole product, and whole wherever it has to be."""

from __future__ import annotations

import asyncio

import pytest
import torch

from qserve.core import shortlist as core
from qserve.core.hardware import CpuFeatures
from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.plan.memory import shortlist_bytes
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model import packed_linear
from qserve.model.cpu import build, shortlist
from qserve.model.cpu.linear import takes_bfloat16
from qserve.model.cpu.matrix import bfloat16_matrix
from qserve.model.cpu.shortlist import ShortlistHead
from qserve.model.measured_weights import weights_by_kind
from tests.tiny.engine.families import VOCABULARY
from tests.tiny.engine.families import build as model_of
from tests.tiny.engine.running import prompts, running, sequence, tokens_of

pytestmark = pytest.mark.skipif(build.why_none() is not None, reason=str(build.why_none()))

VOCAB, HIDDEN = 5003, 128


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()


def head_of(weight: torch.Tensor) -> ShortlistHead:
    matrix = bfloat16_matrix(weight)
    assert matrix is not None
    made = ShortlistHead.of(matrix, weight)
    assert made is not None
    return made


def states(num_rows: int, seed: int, *, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(num_rows, HIDDEN, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16()


@pytest.mark.parametrize("wanted", [1, 4, 20])
@pytest.mark.parametrize("num_rows", [1, 3, 8])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_the_likeliest_are_those_of_the_whole_product(
    weight: torch.Tensor, num_rows: int, wanted: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortlist, "_MOST_CHOSEN", 0.8)
    head, num_short = head_of(weight), 0
    for seed in range(8):
        x = states(num_rows, seed, scale=scale)
        whole = head(x)
        head.num_wanted = wanted
        found = head(x)
        head.num_wanted = None
        computed = ~torch.isneginf(found)
        num_short += not computed.all()
        assert torch.equal(found[computed], whole[computed])
        for row, others in zip(found, whole, strict=True):
            least = others.topk(wanted).values[-1]
            assert torch.equal(row[others >= least], others[others >= least])  # those that equal the last one, too
    assert num_short or num_rows * wanted > 100, "of 157 panels, these leave nearly all"


def test_rows_close_to_each_other_are_told_apart() -> None:
    """Tokens whose weights int8 does not tell apart, one of them larger by a step of bf16."""
    base = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16().expand(VOCAB, -1).clone()
    base[4321, 5] *= 1.01
    head = head_of(base)
    x = torch.zeros(1, HIDDEN, dtype=torch.bfloat16)
    x[0, 5] = 8 * base[0, 5].sign()
    head.num_wanted = 1
    assert int(head(x).argmax()) == int(head.matrix.product(x).argmax())


def test_a_row_that_is_no_number_has_no_number() -> None:
    head = head_of(torch.randn(VOCAB, HIDDEN).bfloat16())
    x = states(1, 0)
    x[0, 3] = float("nan")
    head.num_wanted = 1
    assert head(x).isnan().all()


def test_many_rows_and_all_logits_take_the_whole_product(weight: torch.Tensor) -> None:
    head = head_of(weight)
    head.num_wanted = 1
    assert not torch.isneginf(head(states(9, 0))).any()
    head.num_wanted = VOCAB
    assert not torch.isneginf(head(states(1, 0))).any()
    head.num_wanted = None
    assert not torch.isneginf(head(states(1, 0))).any()


def test_logits_that_lie_too_close_take_whole_products_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_of(torch.full((VOCAB, HIDDEN), 0.5).bfloat16())
    head.num_wanted = 1
    asked: list[int] = []
    largest = type(head.bounds).largest_of_panels
    monkeypatch.setattr(type(head.bounds), "largest_of_panels", lambda m, x: asked.append(1) or largest(m, x))
    for seed in range(3):
        assert not torch.isneginf(head(states(1, seed))).any()
    assert sum(asked) == 1


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        (SamplingParams(temperature=0.0), 1),
        (SamplingParams(temperature=0.6, top_k=20, top_p=0.9, min_p=0.01), 20),
        (SamplingParams(temperature=0.6), None),
        (SamplingParams(temperature=0.0, num_logprobs=0), None),
        (SamplingParams(temperature=0.0, repetition_penalty=1.1), None),
        (SamplingParams(temperature=0.0, logit_bias={3: -5.0}), None),
        (SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=frozenset({1})), None),
        (SamplingParams(temperature=0.6, top_k=-1), None),
    ],
)
def test_what_a_request_wants_of_its_logits(params: SamplingParams, wanted: int | None) -> None:
    assert SequenceSampler(params, [1, 2]).num_wanted == wanted


async def test_answers_are_those_of_the_whole_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy, drawn among few, and one that needs all logits; alone and together."""
    if not takes_bfloat16():
        pytest.skip("this processor multiplies by oneDNN's products")
    monkeypatch.setattr(packed_linear, "_WORTH_PACKING_BYTES", 0)
    monkeypatch.setattr(core, "SHORTLIST_FROM_BYTES", 0)
    monkeypatch.setattr(shortlist, "_MOST_CHOSEN", 1.0)
    model = model_of("qwen3", num_layers=2).bfloat16()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    packed_linear.pack_linears(model)
    head = model.get_output_embeddings()
    assert isinstance(head, ShortlistHead)
    held = weights_by_kind(model)["lm_head"]
    spec = ModelSpec.from_config(model.config.to_dict(), "tiny")
    planned = shortlist_bytes(spec, "bfloat16", CpuFeatures("", frozenset({"avx512_vnni"})))
    assert held["int8"] == VOCABULARY * 64
    assert planned <= held["int8"] + held["float32"] < 1.01 * planned  # the last panel is filled up
    num_short = []
    product = type(head.matrix).product_of_panels
    monkeypatch.setattr(
        type(head.matrix), "product_of_panels", lambda m, x, panels: num_short.append(len(x)) or product(m, x, panels)
    )
    few = {"temperature": 0.8, "top_k": 6, "top_p": 0.9}
    asked = [({}, 1), ({**few, "seed": 1}, 2), ({**few, "seed": 2}, 3), ({"temperature": 1.0, "seed": 3}, 4)]

    async def answers(batcher: PagedBatcher, which: list[int]) -> list[list[int]]:
        jobs = [sequence(f"r{i}", prompts(5, 20)[asked[i][1]], 10, **asked[i][0]) for i in which]
        return await asyncio.gather(*(tokens_of(batcher, one) for one in jobs))

    async with running(PagedBatcher, model) as batcher:
        short = await answers(batcher, [0, 1, 2])
        assert num_short.count(3) >= 9
        del num_short[:]
        with_all = await answers(batcher, [0, 1, 2, 3])
        assert not num_short
        assert head.num_wanted is None
        monkeypatch.setattr(shortlist, "SHORTLIST_ROWS", 0)
        whole = await answers(batcher, [0, 1, 2])
    assert short == whole == with_all[:3]
