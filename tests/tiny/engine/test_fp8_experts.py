"""Experts in fp8 by grouped products: what they say, that nothing is waited for, and where the loop remains."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.activations import ACT2FN

from bench.expert_counts import count_experts
from qserve.engines.transformers.kernels import quantized_products
from qserve.engines.transformers.kernels.refusals import COSTS, FP8_EXPERTS
from qserve.engines.transformers.worker.batching.step_path import StepPath
from qserve.engines.transformers.worker.code_path import code_path
from qserve.model.cuda.products import BY_PIECES, KERNEL
from qserve.model.fp8 import experts_trial
from qserve.model.fp8.choices import chosen_in_fp8
from qserve.model.fp8.experts import Fp8Experts, by_loop
from qserve.model.fp8.experts_trial import (
    choose_grouped_experts,
    experts_trials,
    random_experts,
    routed,
    shapes_of_experts_ahead,
    use_grouped_experts,
)
from qserve.model.fp8.products import CHOSEN, MANY, SCALED, key_of
from qserve.model.fp8.routing import GROUPED, REFUSED, TILES, ExpertsShape, most_tiles, tile_of
from qserve.model.trials.verdicts import Trial, TrialRefused, Verdict
from tests.tiny.engine.fake_card import FakeCard
from tests.tiny.engine.families import build

SHAPE = ExpertsShape(8, 256, 128, 128, 128, 128, 128)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_chosen() -> Iterator[None]:
    with torch.no_grad():
        yield
    GROUPED.clear()
    REFUSED.clear()
    CHOSEN.clear()


_KERNEL = """
import torch
from qserve.engines.transformers.kernels import quantized_products
from qserve.model.cuda.products import by_pieces
from qserve.model.cuda.products import BY_PIECES, KERNEL
from qserve.model.fp8 import experts_trial
from qserve.model.fp8.choices import chosen_in_fp8
from qserve.model.fp8.experts import by_loop
from qserve.model.fp8.experts_trial import random_experts, routed
from qserve.model.fp8.products import CHOSEN, MANY, SCALED, key_of
from qserve.model.fp8.routing import ExpertsShape
from qserve.model.fp8.triton_experts import grouped

torch.set_grad_enabled(False)
blocks = ExpertsShape(6, 256, 64, 64, 128, 128, 64)
rows = ExpertsShape(6, 160, 72, 1, 160, 1, 72)  # inputs that no step divides
cut = ExpertsShape(2, 300, 200, 128, 128, 128, 128)  # gate ends within a block of rows
whole = ExpertsShape(3, 176, 40, 40, 176, 176, 40)  # a scale an expert and matrix


def check(shape, num, top, dtype, tolerance, chosen=None, **more):
    experts = random_experts("cpu", shape)
    states, drawn, shares = routed("cpu", num, top, experts, dtype)
    chosen = drawn if chosen is None else chosen
    meant = by_loop(experts, states.double(), chosen, shares.double(), by_pieces).double()
    said = grouped(states, chosen, shares, *experts.weights, **more)
    assert said.dtype == dtype and said.shape == states.shape
    off = float((said - meant).abs().max() / meant.abs().max())
    assert off < tolerance, (shape, num, dtype, off)


# `routed`: all rows have the last expert, and none the first.
check(blocks, 1, 2, torch.float32, 1e-6)
check(blocks, 64, 2, torch.float16, 2e-3)
check(rows, 1, 2, torch.float16, 2e-3)
check(rows, 8, 2, torch.float32, 1e-6)
check(rows, 3, 1, torch.float32, 1e-6, torch.tensor([[0], [5], [0]]))  # one expert has one row, and four have none
check(cut, 65, 2, torch.float16, 2e-3)  # a full tile of 64, and one of one row
check(cut, 33, 1, torch.float16, 2e-3, tiles=(32,))
check(whole, 17, 3, torch.float32, 1e-6)
check(blocks, 2, 2, torch.float32, 1e-6, torch.tensor([[4, 1], [1, 4]]).t().contiguous().t())
quantized_products._EXPERTS_BYTES = 5 * 2 * (160 + 72) * 4
check(rows, 13, 2, torch.float32, 1e-6)  # five rows at a time

experts_trial._ROWS = (1, 5)
small = dict(experts=2, hidden=64, inner=32, gate_rows=32, gate_columns=64, down_rows=64, down_columns=32)
experts_trial.try_experts("cpu", name="it", dtype="float16", tile=32, **small)
try:
    check(ExpertsShape(2, 192, 64, 64, 64, 64, 64), 2, 2, torch.float32, 1e-6)
except ValueError as error:
    assert "blocks of 64 columns" in str(error)
else:
    raise AssertionError("a step would read the scale of another block")
"""


def test_grouped_products_say_what_the_loop_says() -> None:
    """In Triton's interpreter, whose `dot` takes no bf16, against products in float64; a card compares at start."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", _KERNEL], env=environment, check=True, timeout=300)


def test_no_routing_has_more_tiles_than_are_launched() -> None:
    """And some routing has as many: no bound is lower."""
    draw = random.Random(0)
    for _ in range(3000):
        num_experts, num_pairs, tile = draw.randint(1, 9), draw.randint(1, 200), draw.choice(TILES)
        cuts = sorted(draw.randint(0, num_pairs) for _ in range(num_experts - 1))
        rows = [end - start for start, end in zip([0, *cuts], [*cuts, num_pairs], strict=True)]
        assert sum(-(-num // tile) for num in rows) <= most_tiles(num_pairs, num_experts, tile)
        hit = min(num_pairs, num_experts)
        worst = [num_pairs - hit + 1, *[1] * (hit - 1)]
        assert sum(-(-num // tile) for num in worst) == most_tiles(num_pairs, num_experts, tile)


def test_a_tile_is_one_that_the_experts_rows_fill() -> None:
    assert [tile_of(8 * rows, 128) for rows in (1, 64, 511, 512, 1024, 9000)] == [16, 16, 16, 32, 64, 64]
    assert tile_of(8 * 9000, 128, (16, 32)) == 32 and tile_of(8, 128, (32, 64)) == 32


@pytest.mark.parametrize("hit", [8, 64, 128])
def test_launches_do_not_depend_on_the_routing(hit: int) -> None:
    """The loop's do, and it waits."""
    counts = count_experts(torch.arange(64 * 8).view(64, 8) % hit)
    assert (counts.hit, counts.grouped_launches, counts.grouped_waits) == (hit, 6, 0)
    assert counts.loop_launches > 8 * hit and counts.loop_waits == 1


@pytest.mark.parametrize("num", [1, 64, 2000])
def test_they_can_be_captured(card: FakeCard, num: int) -> None:
    """Whatever is on the card: nothing comes to the host, nor goes from it."""
    experts = random_experts("cuda:0", SHAPE)
    GROUPED["cuda:0", SHAPE] = TILES
    states, chosen, shares = routed("cuda:0", num, 2, experts, torch.bfloat16)
    with card.capture():
        said = experts(states, chosen, shares)
    assert (said.shape, said.dtype, said.device) == (states.shape, torch.bfloat16, states.device)
    assert card.launched == ["_fp8_experts"] * 2


def with_verdicts(monkeypatch: pytest.MonkeyPatch, reasons: dict[int, str]) -> None:
    def told(device: torch.device, groups: Any, **_: Any) -> dict[Trial, Verdict]:
        trials = [one for (one,) in groups]
        return {one: Verdict(reasons.get(tile, "")) for tile, one in zip(TILES, trials, strict=True)}

    monkeypatch.setattr(experts_trial, "tried", told)


def test_of_tiles_that_are_right_one_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="qserve.worker")
    with_verdicts(monkeypatch, {64: "out of shared memory"})
    assert choose_grouped_experts(CPU, SHAPE, torch.bfloat16) == ()
    assert GROUPED == {("cpu", SHAPE): (16, 32)} and not REFUSED
    assert "tiles of 64 rows are passed over: out of shared memory" in caplog.text


def test_where_all_are_refused_the_loop_remains_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experts = random_experts("cpu", SHAPE)
    states, chosen, shares = routed("cpu", 5, 2, experts, torch.bfloat16)
    meant = by_loop(experts, states, chosen, shares)
    GROUPED["cpu", SHAPE] = TILES  # of a trial before
    with_verdicts(monkeypatch, dict.fromkeys(TILES, "ptxas is not there"))
    (refused,) = choose_grouped_experts(CPU, SHAPE, torch.bfloat16)
    assert str(refused) == f"fp8 experts is refused on this card (ptxas is not there): {COSTS[FP8_EXPERTS]}"
    assert caplog.messages == [str(refused)] and not GROUPED
    assert torch.equal(experts(states, chosen, shares), meant)
    batcher: Any = SimpleNamespace(attention="sdpa", step_path=StepPath())
    assert code_path(experts, batcher).refused == (refused,)
    with_verdicts(monkeypatch, {})
    choose_grouped_experts(CPU, SHAPE, torch.bfloat16)
    assert not REFUSED and not code_path(experts, batcher).refused


def test_experts_of_another_activation_keep_the_loop() -> None:
    """The kernel has SiLU alone: such experts of the same shape must not take what was tried for others."""
    experts = random_experts("cpu", SHAPE)
    other = Fp8Experts.__new__(Fp8Experts)
    other.__dict__.update(experts.__dict__, act_fn=torch.nn.GELU(), can_be_grouped=False)
    GROUPED["cpu", SHAPE] = TILES
    states, chosen, shares = routed("cpu", 5, 2, experts, torch.bfloat16)
    assert torch.equal(other(states, chosen, shares), by_loop(other, states, chosen, shares))
    assert not torch.equal(other(states, chosen, shares), by_loop(experts, states, chosen, shares))
    sizes = {"num_experts": SHAPE.experts, "hidden_dim": SHAPE.hidden, "intermediate_dim": SHAPE.inner}
    shapes = (SHAPE.inner, 1), (SHAPE.hidden, 1)
    made = [
        Fp8Experts(SimpleNamespace(**sizes, act_fn=ACT2FN[name]), "_scale", *shapes, None) for name in ("silu", "gelu")
    ]
    assert [one.can_be_grouped for one in made] == [True, False]


def test_a_trial_refuses_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from qserve.model.fp8 import triton_experts

    small = {"experts": 4, "hidden": 64, "inner": 32, "gate_rows": 1, "gate_columns": 64}
    small |= {"down_rows": 1, "down_columns": 32}
    held = random_experts("cpu", ExpertsShape(**small))
    for factor, is_right in ((1.0, True), (1.05, False)):
        monkeypatch.setattr(
            triton_experts,
            "grouped",
            lambda states, chosen, shares, *_, factor=factor: factor * by_loop(held, states, chosen, shares),
        )
        if is_right:
            experts_trial.try_experts("cpu", name="it", dtype="bfloat16", tile=16, **small)
        else:
            with pytest.raises(
                TrialRefused, match=r"it: wrong by 0\.0\d+ of the largest number \(1 rows, tiles of 16\)"
            ):
                experts_trial.try_experts("cpu", name="it", dtype="bfloat16", tile=16, **small)


def test_what_was_chosen_is_told_by_kind_and_rows() -> None:
    """Of experts one by one, by their shapes; where they are grouped, by the rows of a tile."""
    experts = random_experts("cpu", SHAPE)
    assert chosen_in_fp8(experts) == {}
    (upper, other), down = experts.held(0)
    assert upper.codes.shape == other.codes.shape
    CHOSEN.update({key_of(1, upper): KERNEL, key_of(100, upper): SCALED, key_of(1, down): BY_PIECES})
    CHOSEN["cpu", "fp8 in rows", 999, 64, 1] = KERNEL  # of another model
    assert chosen_in_fp8(experts) == {"fp8 in blocks": {1: (KERNEL, BY_PIECES), MANY: (SCALED,)}}
    GROUPED["cpu", SHAPE] = (16, 32)
    assert chosen_in_fp8(experts) == {FP8_EXPERTS: {16: (KERNEL,), 32: (KERNEL,)}}
    batcher: Any = SimpleNamespace(attention="sdpa", step_path=StepPath())
    assert code_path(experts, batcher).products == chosen_in_fp8(experts)


def test_nothing_is_tried_on_a_cpu() -> None:
    assert use_grouped_experts(random_experts("cpu", SHAPE), torch.bfloat16) == () and not GROUPED


@pytest.mark.parametrize("block", [None, (128, 128), (32, 32)])
def test_what_is_told_ahead_is_what_is_asked(block: tuple[int, int] | None) -> None:
    """By a model without weights, and by the layer that it becomes."""
    model = build("qwen3-moe")
    (shape,) = shapes_of_experts_ahead(model, block)
    plain: Any = model.model.layers[0].mlp.experts
    gate, down = (
        ((outputs, 1) if block is None else (-(-outputs // block[0]), -(-inputs // block[1])))
        for outputs, inputs in ((32, 64), (64, 32))
    )
    assert shape == Fp8Experts(plain, "_scale_inv", gate, down, block).shape
    ahead = experts_trials([shape], torch.bfloat16)
    assert len(ahead) == len(TILES) and ahead != experts_trials([replace(shape, hidden=128)], torch.bfloat16)


def test_rows_at_a_time_are_those_that_the_plan_counts() -> None:
    """The experts of 30B-A3B: 128 MiB between the products."""
    assert quantized_products.experts_rows(2048, 768, 8, 2) == 128 * 1024**2 // (8 * (2048 + 768) * 2)
