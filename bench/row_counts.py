"""What a layer of a reward model launches for a row of texts: counted, since it can't be timed where no card is.

Bodies of two and of four layers read the same row on a CPU by the path that cards take; a layer is half the difference.
The kernel for all texts stands aside for one that is one launch, as torch's is.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from transformers import Qwen3Config, Qwen3Model

from bench.step_counts import launches_of
from qserve.reward.scoring import attention
from qserve.reward.scoring.attention import RowLayout, Segment

__all__ = ["layer_launches"]

_TOKENS = 5


@torch.library.custom_op("qserve_bench::attend_texts", mutates_args=())
def _attend_texts(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """One launch. What it says does not matter here."""
    return torch.zeros_like(query.transpose(1, 2), memory_format=torch.contiguous_format)


def layer_launches(num_texts: int, *, by_one_call: bool, shared: int = 0) -> int:
    """Of a row of `num_texts`, all with the same beginning of `shared` tokens where there is one."""
    begins = [Segment(0, shared)] if shared else []
    starts = range(shared, shared + num_texts * _TOKENS, _TOKENS)
    layout = RowLayout((*begins, *(Segment(one, one + _TOKENS, 0, shared) for one in starts)), by_one_call)
    few, many = (_launches(layers, layout) for layers in (2, 4))
    return (many - few) // 2


def _launches(num_layers: int, layout: RowLayout) -> int:
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=100,
    )
    attention.register()
    body: Any = Qwen3Model(config).eval()
    body.set_attn_implementation(attention.NAME)
    num = layout.segments[-1].stop
    kernel = mock.patch.object(
        attention, "attend_texts", lambda query, key, value, *_: _attend_texts(query, key, value)
    )
    with torch.no_grad(), kernel:
        ids, positions = torch.ones(1, num, dtype=torch.long), torch.arange(num)[None]
        call = lambda: body(input_ids=ids, position_ids=positions, layout=layout, use_cache=False)  # noqa: E731
        call()  # makes masks and bounds
        return launches_of(call).total()
