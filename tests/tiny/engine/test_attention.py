"""Attention over sequences that lie end to end, against plain masked attention of each alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.engines.transformers.worker.attention import packed as attention
from qserve.engines.transformers.worker.attention.packed import varlen_sdpa
from qserve.model import sdpa
from qserve.model.sdpa import length_buckets

HEADS, KV_HEADS, WIDTH = 4, 2, 16


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    """One sequence, [heads, queries, width]; the queries are its last tokens. Written out, in float64."""
    query, key, value = query.double(), key.double(), value.double()
    key, value = (states.repeat_interleave(HEADS // KV_HEADS, dim=0) for states in (key, value))
    scores = query @ key.transpose(1, 2) * scaling
    num_q, num_k = scores.shape[1:]
    after = torch.arange(num_k)[None] > torch.arange(num_q)[:, None] + num_k - num_q
    return (scores.masked_fill(after, float("-inf")).softmax(-1) @ value).transpose(0, 1)


def check(num_q: list[int], num_k: list[int], scaling: float | None = None) -> None:
    generator = torch.Generator().manual_seed(sum(num_k))
    query = torch.randn(1, HEADS, sum(num_q), WIDTH, generator=generator)
    key, value = (torch.randn(1, KV_HEADS, sum(num_k), WIDTH, generator=generator) for _ in range(2))
    ends_q, ends_k = ([0, *torch.tensor(num).cumsum(0).tolist()] for num in (num_q, num_k))
    cu_seqlens = {"cu_seq_lens_q": torch.tensor(ends_q), "cu_seq_lens_k": torch.tensor(ends_k)}
    output, weights = varlen_sdpa(torch.nn.Module(), query, key, value, None, scaling, **cu_seqlens)
    assert weights is None
    assert output.shape == (1, sum(num_q), HEADS, WIDTH)
    for i in range(len(num_q)):
        rows, columns = slice(*ends_q[i : i + 2]), slice(*ends_k[i : i + 2])
        meant = plain(query[0, :, rows], key[0, :, columns], value[0, :, columns], scaling or WIDTH**-0.5)
        torch.testing.assert_close(output[0, rows].double(), meant, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("num_q", "num_k"),
    [
        ([5], [5]),
        ([1], [1]),
        ([1], [70]),
        ([4], [9]),
        ([7, 3, 12], [7, 3, 12]),
        ([1, 1, 1, 1], [3, 64, 65, 200]),
        ([1, 6, 1, 4, 1], [30, 6, 500, 100, 2]),
        ([1, 1], [63, 1]),
    ],
    ids=["prompt", "one token", "decode", "chunk", "prompts", "decodes of all lengths", "mixed", "last is short"],
)
def test_each_sequence_sees_itself_alone(num_q: list[int], num_k: list[int]) -> None:
    check(num_q, num_k)
    check(num_q, num_k, scaling=0.3)


def test_where_no_kernel_takes_grouped_heads_none_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card a masked call with grouped heads would write out every score in float32."""
    calls: list[dict[str, object]] = []

    def recorded(*tensors: torch.Tensor, **arguments: object) -> torch.Tensor:
        calls.append(arguments)
        return torch.nn.functional.scaled_dot_product_attention(*tensors, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", recorded)
    monkeypatch.setattr(sdpa, "_has_grouped_kernel", lambda query, mask: False)
    check([4], [9])
    check([7, 3, 12], [7, 3, 12])
    assert len(calls) == 4
    assert not any(arguments.get("enable_gqa") for arguments in calls)


@pytest.mark.parametrize(
    ("dtype", "capability", "masked", "has_one"),
    [
        (torch.bfloat16, (9, 0), False, True),
        (torch.bfloat16, (9, 0), True, False),
        (torch.float32, (9, 0), False, False),
        (torch.float16, (7, 5), False, False),
    ],
    ids=["H100", "H100, a chunk", "H100, float32", "T4"],
)
def test_which_calls_have_a_kernel_for_grouped_heads_on_a_card(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], masked: bool, has_one: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    query = cast("torch.Tensor", SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype))
    assert sdpa._has_grouped_kernel(query, torch.ones(1) if masked else None) is has_one


def test_cudnn_with_its_plan_for_every_length_is_left_out() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    attention.register()
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_cu_seqlens_are_read_once_for_all_layers_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading waits for a GPU, and so does what is brought there. A new step is read anew, though it lies in the same
    memory."""
    num_read = num_brought = 0
    tolist, tensor_of = torch.Tensor.tolist, torch.tensor

    def read(tensor: torch.Tensor) -> object:
        nonlocal num_read
        num_read += 1
        return tolist(tensor)

    def bring(*values: Any, **where: Any) -> torch.Tensor:
        nonlocal num_brought
        num_brought += 1
        return tensor_of(*values, **where)

    query, key, value = (torch.randn(1, heads, 9, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS))
    memory = torch.tensor([0, 0, 8, 9])
    monkeypatch.setattr(torch.Tensor, "tolist", read)
    monkeypatch.setattr(torch, "tensor", bring)
    for border in (3, 6):
        memory[1] = border
        of_queries, of_keys = memory[:], memory[:]
        for _ in range(3):
            output, _ = varlen_sdpa(
                torch.nn.Module(), query, key, value, None, cu_seq_lens_q=of_queries, cu_seq_lens_k=of_keys
            )
        assert (num_read, num_brought) == (2, 1)
        num_read = num_brought = 0
        second = (states[0, :, border:8] for states in (query, key, value))
        torch.testing.assert_close(output[0, border:8].double(), plain(*second, WIDTH**-0.5), atol=1e-5, rtol=1e-4)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 150), st.booleans()), min_size=1, max_size=8))
def test_any_mixture(rows: list[tuple[int, int, bool]]) -> None:
    num_q = [1 if decodes else length for length, _, decodes in rows]
    check(num_q, [q + past for q, (_, past, _) in zip(num_q, rows, strict=True)])


@given(st.dictionaries(st.integers(0, 500), st.integers(1, 40_000), max_size=80))
def test_buckets_hold_everyone_once_and_padding_never_doubles_work(lengths: dict[int, int]) -> None:
    buckets = length_buckets(lengths)
    assert sorted(index for bucket in buckets for index in bucket) == sorted(lengths)
    for bucket in buckets:
        inside = [lengths[index] for index in bucket]
        assert inside == sorted(inside)
        assert inside[-1] <= max(2 * inside[0], 64)
    assert len(buckets) <= 12
