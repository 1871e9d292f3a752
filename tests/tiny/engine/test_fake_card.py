"""The card that is not there (`fake_card`) notices what it is there for."""

from __future__ import annotations

import pytest
import torch

from tests.tiny.engine.fake_card import FakeCard, Waited

CUDA = torch.device("cuda", 0)


def test_a_read(card: FakeCard) -> None:
    states = torch.empty(4, device=CUDA)
    for read in (lambda: states[0].item(), states.tolist, lambda: bool(states[0] > 0), states.cpu):
        card.waits.clear()
        read()
        assert len(card.waits) == 1
    for shape in (lambda: states[states > 0], states.nonzero, lambda: torch.equal(states, states)):
        with pytest.raises(Waited):
            shape()


def test_what_is_brought_from_ram(card: FakeCard) -> None:
    states, host = torch.empty(4, device=CUDA), torch.empty(4)
    for bring in (
        lambda: torch.tensor([1, 2], device=CUDA),
        lambda: host.to(CUDA, non_blocking=True),  # pageable
        lambda: host.pin_memory().to(CUDA),  # blocking
        lambda: states[torch.tensor([1, 2])],
        lambda: states.index_put_((torch.zeros(2, dtype=torch.long, device=CUDA),), torch.ones(())),
    ):
        card.waits.clear()
        bring()
        assert len(card.waits) == 1, card.waits
    with pytest.raises(RuntimeError, match="two"):
        states + host


def test_what_is_read_before_it_has_come(card: FakeCard) -> None:
    host = torch.empty(4, pin_memory=True)
    host.copy_(torch.empty(4, device=CUDA), non_blocking=True)
    with pytest.raises(Waited, match="before it has come"):
        host.tolist()
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    assert host.tolist() == [0.0] * 4


def test_what_a_capture_cannot_have(card: FakeCard) -> None:
    states, pinned = torch.empty(4, device=CUDA), torch.empty(4).pin_memory()
    for asked in (lambda: pinned.to(CUDA, non_blocking=True), lambda: states + torch.ones(()), states.tolist):
        with pytest.raises(Waited, match="in a capture"), card.capture():
            asked()


def test_a_launch_that_is_not_right(card: FakeCard) -> None:
    triton_kernels = pytest.importorskip("qserve.engines.transformers.worker.decoding.triton_kernels")

    gate = torch.empty(2, 8, device=CUDA)
    triton_kernels.silu_and_multiply(gate, gate)
    with pytest.raises(AssertionError, match="_silu_and_multiply"):
        triton_kernels.silu_and_multiply(gate, torch.empty(2, 8))
    with pytest.raises(AssertionError, match="whatever card"):
        triton_kernels._silu_and_multiply[(1, 2)](gate, gate, gate, 8, 8, 8, block=16)
    with pytest.raises(TypeError, match="block"), card.guard(gate):
        triton_kernels._silu_and_multiply[(1, 2)](gate, gate, gate, 8, 8, 8)
    apart = torch.empty(2, 16, device=CUDA)[:, :8]
    triton_kernels.silu_and_multiply(apart, gate)  # rows may lie apart, whose distance it is told
    with pytest.raises(AssertionError, match="_silu_and_multiply"):
        triton_kernels.silu_and_multiply(gate, torch.empty(8, 2, device=CUDA).t())
