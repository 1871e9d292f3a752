"""A step of continuous batching through a dense bf16 body on a CPU, with compiled C between its matrix products.

The library runs a model's modules one by one: half of a decoding step of a Qwen3-0.6B shape went into gathering keys,
attention over them and small operations (docs/results/throughput.md). Here the body's `forward` is replaced for the
steps of the paged batcher; whatever else calls the model gets the library's own. Of a prompt only the last token's
states are read, so the last layer finishes no others.

Sequences that decode read their keys in place, page by page (`pages.c`). Prompts, chunks of them and what follows a
shared prefix are causal texts whose keys lie in the pages (`attention.c`; torch's SDPA where the processor lacks its
instructions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import MoeModelOutputWithPast

from qserve.model.cpu import kernels
from qserve.model.cpu.dense import DenseBody
from qserve.model.cpu.layers import CompiledLayers, Reads
from qserve.model.sdpa import causal_prompt

__all__ = ["COMPILED", "CompiledSteps", "compile_steps", "why_not_compiled"]

COMPILED = "compiled"
"""The name of this kind of attention in reports."""


@dataclass(frozen=True)
class CompiledSteps:
    """What `compile_steps` has done: `undo` puts the library's forward back; `layers`, where a step is one call."""

    undo: Callable[[], None]
    layers: CompiledLayers | None


def compile_steps(model: Any, cache: Any) -> CompiledSteps | None:
    """Replace the body's `forward` for steps over `cache`, the library's paged one.

    None for bodies that `DenseBody` does not take, and where not all layers keep all keys in `cache`.
    """
    allocators = list(cache.cache_allocators.values())
    if len(allocators) != 1 or allocators[0].layer_type != "full_attention":
        return None
    body, allocator = model.get_decoder(), allocators[0]
    dense = DenseBody.of(body)
    if dense is None or not kernels.can_attend_pages(allocator.head_dim):
        return None
    library = body.forward

    def forward(
        input_ids: torch.Tensor | None = None, position_ids: torch.Tensor | None = None, **kwargs: Any
    ) -> MoeModelOutputWithPast:
        if kwargs.get("cache") is not cache or input_ids is None or position_ids is None:
            return library(input_ids=input_ids, position_ids=position_ids, **kwargs)
        if dense.layers is not None:
            # What torch computes beside this is small, and OpenMP's threads would spin on the cores that ours work on.
            # Of this thread, which generates: others keep theirs.
            torch.set_num_threads(1)
        step = _Step.of(allocator, kwargs)
        wanted = step.last if dense.layers is not None and len(step.last) < input_ids.shape[1] else None
        states = dense(input_ids[0], position_ids[0], step.reads(), step.attend, wanted)
        if wanted is not None:
            states = states.new_zeros(input_ids.shape[1], states.shape[1]).index_copy_(0, wanted, states)
        return MoeModelOutputWithPast(last_hidden_state=states[None])

    body.forward = forward
    return CompiledSteps(lambda: delattr(body, "forward"), dense.layers)


def why_not_compiled(model: Any) -> str | None:
    """What keeps steps from it where the model suits: half a sentence."""
    return DenseBody.why_not(model.get_decoder())


@dataclass(frozen=True)
class _Step:
    """What every layer of a step writes and reads.

    Attributes:
        views: keys and values of each layer, [rows, kv_heads, head_dim].
        written: int64 [tokens], the row of each new key.
        places: int64, the rows of all keys, sequence after sequence; None where the new keys are all there are.
        rows: int64, which queries are the one token of a sequence that decodes.
        spans: int64 [len(rows), 2], where the keys of those begin and end in `places`.
        texts: int64 [prompts, 5], as `kernels.attend` has them.
        last: int64, the last token of each sequence: those of which somebody may want logits.

    """

    views: dict[int, tuple[torch.Tensor, torch.Tensor]]
    written: torch.Tensor
    places: torch.Tensor | None
    rows: torch.Tensor
    spans: torch.Tensor
    texts: torch.Tensor
    last: torch.Tensor

    @classmethod
    def of(cls, allocator: Any, kwargs: dict[str, Any]) -> _Step:
        """From what the library hands to a model for a step."""
        queries = kwargs["cu_seq_lens_q"].tolist()
        keys = kwargs["cu_seq_lens_k"][allocator.layer_type].tolist()
        read = kwargs["read_index"][allocator.index].long()
        places = read if len(read) else None
        spans = list(zip(queries, queries[1:], keys, keys[1:], strict=False))
        # One token may be all that is left of a prompt: it is rounded as it is beside the others.
        of_prompt = kwargs["reads_prompt"]
        decoding = [span for span, is_prompt in zip(spans, of_prompt, strict=True) if not is_prompt]
        prompts = [(*span, -1) for span, is_prompt in zip(spans, of_prompt, strict=True) if is_prompt]
        return cls(
            views=allocator._kv_token_views,
            written=kwargs["write_index"][allocator.index].long(),
            places=places,
            rows=torch.tensor([span[0] for span in decoding], dtype=torch.int64),
            spans=torch.tensor([span[2:] for span in decoding], dtype=torch.int64),
            texts=torch.tensor(prompts, dtype=torch.int64),
            last=torch.tensor([span[1] - 1 for span in spans if span[1] > span[0]], dtype=torch.int64),
        )

    def reads(self) -> Reads:
        """The same for layers that run compiled."""
        caches = {index: (keys.flatten(1), values.flatten(1)) for index, (keys, values) in self.views.items()}
        return Reads(self.texts, self.rows, self.spans, self.places, self.written, caches)

    def attend(self, attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """A layer's attention (`dense.Attend`); the new keys and values are in the cache afterwards."""
        size, scaling = attention.head_dim, attention.scaling
        keys, values = self.views[attention.layer_idx]
        for cached, new in ((keys, key), (values, value)):
            cached.index_copy_(0, self.written, new.view(len(new), -1, size))
        if self.places is not None:
            key, value = keys.flatten(1), values.flatten(1)
        mixed = torch.empty_like(query)
        if self.places is not None and len(self.rows):
            kernels.attend_pages(
                query, key, value, size, scaling, rows=self.rows, spans=self.spans, places=self.places, out=mixed
            )
        if len(self.texts):
            self._read_prompts(query, key, value, size, scaling, mixed)
        return mixed

    def _read_prompts(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, size: int, scaling: float, out: torch.Tensor
    ) -> None:
        if kernels.can_attend(size):
            kernels.attend(query, key, value, size, scaling, self.texts, places=self.places, out=out)
            return
        for start, stop, first, end, _ in self.texts.tolist():
            seen = slice(first, end) if self.places is None else self.places[first:end]
            q, k, v = (
                part.view(1, len(part), -1, size).transpose(1, 2)
                for part in (query[start:stop], key[seen], value[seen])
            )
            out[start:stop] = causal_prompt(q, k, v, scaling)[0].transpose(0, 1).flatten(1)
