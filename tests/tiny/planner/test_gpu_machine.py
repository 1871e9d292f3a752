"""The card as bench/gpu.py sees it, from known answers of torch."""

from __future__ import annotations

import importlib.metadata
from types import SimpleNamespace

import pytest
import torch

from bench.gpu_steps.loaded import is_as_planned
from bench.gpu_steps.machine import Machine

GIB, MIB = 1024**3, 1024**2
TOTAL = 81_079 * MIB


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Eight H100: 700 MiB are taken outside of torch, 2 GiB by it. Which of the cards were asked."""
    cards: list[int] = []

    def free_and_total(card: int | torch.device) -> tuple[int, int]:
        cards.append(card if isinstance(card, int) else card.index)
        return TOTAL - 700 * MIB - 2 * GIB, TOTAL

    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=9, minor=0)
    answers = {
        "mem_get_info": free_and_total,
        "memory_reserved": lambda card: 2 * GIB,
        "get_device_properties": lambda card: properties,
        "get_device_capability": lambda card: (properties.major, properties.minor),
        "device_count": lambda: 8,
        "synchronize": lambda card: None,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return cards


def test_what_others_hold_is_what_is_neither_torchs_nor_the_contexts(asked: list[int]) -> None:
    (card,) = Machine(torch.device("cuda:0")).hardware().devices
    assert (card.total_bytes, card.used_by_others_bytes) == (TOTAL, 188 * MIB)
    assert card.compute_capability == (9, 0)
    assert Machine(torch.device("cuda:0")).outside_bytes() == 700 * MIB


def test_cards_that_nobody_asked_for_are_not_touched(asked: list[int]) -> None:
    """Asking one makes a context on it."""
    Machine(torch.device("cuda:0")).plan("Qwen/Qwen3-0.6B", quant="bf16")
    assert set(asked) == {0}
    assert len(Machine(torch.device("cuda:0")).hardware(num_cards=2).devices) == 2
    assert set(asked) == {0, 1}


@pytest.mark.parametrize("scheme", ["bf16", "bnb-nf4", "bnb-int8"])
def test_the_largest_shape_fits_one_h100(asked: list[int], scheme: str) -> None:
    plan = Machine(torch.device("cuda:0")).plan("Qwen/Qwen3-32B", quant=scheme, max_model_len=4096, max_num_seqs=16)
    assert plan.fits, plan.why_not
    assert plan.placement.device_map == "cuda:0"


@pytest.mark.parametrize(
    ("weights", "activations", "outside", "well"),
    [(100, 10, 12, True), (96, 10, 12, False), (100, 30, 12, False), (100, 10, 25, False)],
    ids=["near", "weights off", "peak off", "context off"],
)
def test_memory_is_held_against_the_plan(weights: int, activations: int, outside: int, well: bool) -> None:
    planned = {"weights_bytes": 100, "kv_cache_bytes": 60, "activations_bytes": 10, "runtime_bytes": 10}
    taken = {"weights_bytes": weights, "activations_bytes": activations, "runtime_bytes": outside}
    assert is_as_planned(planned, {**planned, **taken}) is well


def test_a_release_that_captures_nothing_is_planned_so(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the installed library's: 5.17 keeps other books, and its steps are never captured."""
    original = importlib.metadata.version
    for release, captures in (("5.17.0", False), ("5.19.0", True)):
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name, r=release: r if name == "transformers" else original(name)
        )
        (device,) = Machine(torch.device("cuda:0")).plan("Qwen/Qwen3-8B", quant="bf16", max_model_len=4096).devices
        assert bool(device.cuda_graphs_bytes) is captures, release
