"""The sentence about attention: which kernel, and what stands in the way of others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qserve.engines.transformers.kernels.attention_kernels import (
    FLASH_2,
    FLASH_3,
    HUB_FLASH_2,
    HUB_FLASH_3,
    HUB_VLLM_FLASH_3,
    TORCH_VARLEN,
    TRITON_PAGED,
)
from qserve.engines.transformers.worker.attention import kernels, sources
from qserve.engines.transformers.worker.attention.kernels import GATHERED, Heads, choose_kernel
from qserve.engines.transformers.worker.attention.report import attention_report
from tests.tiny.engine.paged_reference import read_in_place

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
BF16 = Heads(8, 2, 64, torch.bfloat16)
MODEL: Any = SimpleNamespace(get_decoder=lambda: torch.nn.Identity())


def test_a_cpu() -> None:
    chosen = choose_kernel(CPU, BF16)
    assert chosen.name == GATHERED
    assert attention_report(MODEL, chosen.name, chosen.passed_over).endswith("flash-attn has no kernels for a CPU")


@pytest.mark.parametrize(
    ("dtype", "capability", "reason"),
    [
        (torch.float32, (9, 0), "flash-attn computes in 16 bit, and this model in float32"),
        (torch.float16, (7, 5), "flash-attn needs compute capability 8.0, and this card has 7.5"),
    ],
)
def test_cards_and_models_that_no_kernel_serves(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], reason: str
) -> None:
    """Where Triton is not there, whose kernel serves them all."""
    monkeypatch.setattr(sources, "installed", lambda: frozenset({"flash-attn"}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    chosen = choose_kernel(CARD, Heads(8, 2, 64, dtype))
    assert (chosen.name, chosen.page_tokens, chosen.refused) == (GATHERED, 32, ())
    assert reason in attention_report(MODEL, chosen.name, chosen.passed_over)


@pytest.mark.parametrize(
    ("capability", "passed_over"),
    [
        ((9, 0), {FLASH_3, HUB_FLASH_3, HUB_VLLM_FLASH_3, TRITON_PAGED, TORCH_VARLEN, HUB_FLASH_2}),
        ((8, 6), {TRITON_PAGED, TORCH_VARLEN, HUB_FLASH_2}),
    ],
)
def test_the_first_that_is_there_and_right_is_taken(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], passed_over: set[str]
) -> None:
    """Of kernels that are missing, refuse, or are wrong, each is named with its reason."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(kernels, "is_right", lambda kernel, *_, **__: kernel())
    monkeypatch.setattr(sources, "installed", lambda: frozenset({"flash-attn"}))

    def refuses() -> bool:
        raise RuntimeError("block_table is not for this kernel")

    monkeypatch.setattr(sources, "_torch_varlen", lambda: iter([refuses]))
    monkeypatch.setattr(sources, "_flash_2", lambda: iter([lambda: False, lambda: True]))
    chosen = choose_kernel(CARD, BF16)
    assert (chosen.name, chosen.page_tokens) == (FLASH_2, 256)
    assert set(chosen.passed_over) == passed_over
    told = attention_report(MODEL, chosen.name, chosen.passed_over)
    assert told.startswith("flash-attn 2, paged (")
    assert "block_table is not for this kernel" in told
    monkeypatch.setattr(sources, "_flash_2", lambda: iter([lambda: False]))
    chosen = choose_kernel(CARD, BF16)
    assert chosen.name == GATHERED
    assert "flash_attention_2: it is wrong on this card" in attention_report(MODEL, GATHERED, chosen.passed_over)


def test_prompts_take_the_first_behind_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours reads one query of a sequence, and is asked for no more; where nothing else is right, prompts have SDPA."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(sources, "installed", lambda: frozenset({"triton", "flash-attn"}))
    asked: list[tuple[str, int, bool]] = []

    def is_right(kernel: Any, device: Any, heads: Any, page_tokens: int, *, decodes_alone: bool = False) -> bool:
        name = kernel(None, None, None, SimpleNamespace(max_queries=1), 1.0)
        asked.append((name, page_tokens, decodes_alone))
        return bool(name != "varlen")

    def named(name: str) -> Any:
        return lambda *_: iter([lambda *_: name])

    monkeypatch.setattr(kernels, "is_right", is_right)
    monkeypatch.setattr(sources, "_triton", named("ours"))
    monkeypatch.setattr(sources, "_torch_varlen", named("varlen"))
    monkeypatch.setattr(sources, "_flash_2", named("flash 2"))
    chosen = choose_kernel(CARD, BF16)
    assert (chosen.name, chosen.page_tokens) == (f"{TRITON_PAGED}+{FLASH_2}", 256)
    assert chosen.reads_prompts and chosen.is_in_place
    query: Any = None
    for num_queries, name in ((1, "ours"), (7, "flash 2")):
        step: Any = SimpleNamespace(max_queries=num_queries)
        assert chosen.read(query, query, query, step, 1.0) == name
    assert asked == [("ours", 32, True), ("ours", 256, True), ("varlen", 256, False), ("flash 2", 256, False)]
    told = attention_report(MODEL, chosen.name, chosen.passed_over)
    assert told.startswith("qserve's own kernel, paged; prompts: flash-attn 2, paged (")
    monkeypatch.setattr(sources, "installed", lambda: frozenset({"triton"}))
    alone = choose_kernel(CARD, BF16)
    assert (alone.name, alone.page_tokens, alone.reads_prompts) == (TRITON_PAGED, 32, False) and not alone.refused


@pytest.mark.parametrize("heads", [Heads(8, 2, 64, torch.float32), Heads(4, 4, 32, torch.bfloat16)])
def test_a_kernel_is_right_or_is_found_out(heads: Heads) -> None:
    """A plain reference, and mistakes that kernels make."""
    assert kernels.is_right(read_in_place, CPU, heads, 256)
    assert not kernels.is_right(lambda *args: read_in_place(*args, shift=1), CPU, heads, 256)
    assert not kernels.is_right(lambda query, keys, *rest: read_in_place(query, keys.flip(0), *rest), CPU, heads, 256)


def test_a_kernel_of_the_hub_is_fetched_in_its_version_and_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is installed; what the hub says no to is named, and the next is tried."""
    asked = []

    def get_kernel(repository: str, version: int) -> Any:
        asked.append((repository, version))
        if repository == HUB_FLASH_3:
            raise OSError("we are offline")
        varlen = lambda query, keys, values, **step: query  # noqa: E731
        return SimpleNamespace(flash_attn_varlen_func=varlen)

    monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=get_kernel))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(sources, "installed", lambda: frozenset({"kernels"}))
    step: Any = SimpleNamespace(max_queries=1, query_bounds=0, max_keys=1, num_keys=0, block_table=0)
    monkeypatch.setattr(kernels, "is_right", lambda kernel, *_, **__: kernel(7, 8, 9, step, 1.0) == 7)
    chosen = choose_kernel(CARD, BF16)
    assert chosen.name == HUB_VLLM_FLASH_3
    assert asked == [(HUB_FLASH_3, 1), (HUB_VLLM_FLASH_3, 1), (HUB_VLLM_FLASH_3, 1)]  # the last time by who runs it
    told = attention_report(MODEL, chosen.name, chosen.passed_over)
    assert told.startswith("vLLM's flash-attn 3 of Hugging Face's hub")
    assert "we are offline" in told


def test_a_kernel_of_the_hub_is_tried_again_when_it_was_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(sources, "installed", lambda: frozenset({"kernels"}))
    monkeypatch.setattr(sources, "is_offline_mode", lambda: True)
    before = kernels.kernel_trials(CARD, BF16)
    (tmp_path / "models--kernels-community--flash-attn2" / "snapshots" / "0123abcd").mkdir(parents=True)
    after = kernels.kernel_trials(CARD, BF16)
    assert [one.name for one in after[0]] == [TORCH_VARLEN, HUB_FLASH_2]
    assert before[0][0] == after[0][0] and before[0][1] != after[0][1]
