"""Print what vLLM's sampler of the first runner holds at its peak, in bytes per row and vocabulary entry, as JSON.

Every storage that an operation makes is counted until it is gone. Top-k and top-p are left out: Triton's, which cards
run, mask the logits in place.
"""

from __future__ import annotations

import json
import os
import weakref
from dataclasses import replace
from typing import Any

os.environ["TORCH_COMPILE_DISABLE"] = "1"

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

ROWS, VOCABULARY = 8, 20_000


class LiveBytes(TorchDispatchMode):
    """`peak`: the most bytes that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return made

    def _see(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, place: int) -> None:
        self.now -= self._sizes.pop(place, 0)


def same(value: float) -> torch.Tensor:
    return torch.full((ROWS,), value)


PROFILED = SamplingMetadata(
    temperature=same(0.5),
    all_greedy=False,
    all_random=False,
    top_p=None,
    top_k=None,
    generators={},
    max_num_logprobs=None,
    logprob_token_ids=None,
    no_penalties=True,
    prompt_token_ids=None,
    frequency_penalties=same(0.1),
    presence_penalties=same(0.1),
    repetition_penalties=same(1.1),
    output_token_ids=[[] for _ in range(ROWS)],
    spec_token_ids=[[] for _ in range(ROWS)],
    allowed_token_ids_mask=None,
    bad_words_token_ids={},
    logitsprocs=LogitsProcessors(),
)
PENALTIES = {
    "no_penalties": False,
    "prompt_token_ids": torch.zeros(ROWS, 10, dtype=torch.int64),
    "output_token_ids": [[1, 2] for _ in range(ROWS)],
}


def peak(**changes: Any) -> float:
    sampler = Sampler()
    sampler.topk_topp_sampler.forward = sampler.topk_topp_sampler.forward_native  # as on a card
    sampler.greedy_sample = lambda logits: logits.argmax(dim=-1).view(-1)  # the CPU build has a kernel of its own
    with torch.inference_mode(), LiveBytes() as live:
        logits = torch.rand(ROWS, VOCABULARY, dtype=torch.bfloat16)
        sampler(logits=logits, sampling_metadata=replace(PROFILED, **changes))
    return live.peak / (ROWS * VOCABULARY)


found = {
    "profiled": peak(),
    "seeds": peak(generators={row: torch.Generator().manual_seed(row) for row in range(ROWS)}),
    "logprobs": peak(max_num_logprobs=5),
    "penalties and logprobs": peak(max_num_logprobs=5, **PENALTIES),
}
print(json.dumps(found))
