"""A step of a hybrid over rows, on a CPU and in bf16, with compiled C between its matrix products.

As `compiled_step` does for pages: the body's `forward` is replaced for the steps over one `RowCache`; whatever else
calls the model gets the library's own. Keys are read in the pages where they lie, and linear attention's states row by
row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import MoeModelOutputWithPast

from qserve.model.cpu.hybrid import HybridLayers, HybridReads

__all__ = ["CompiledRowStep", "compile_rows", "why_not_compiled"]


@dataclass(frozen=True)
class CompiledRowStep:
    """What a forward reads and writes; `places` [row, position] finds keys in a layer's pages.

    Attributes:
        first: the first row; the others follow it.
        starts: tokens of each row that came before.
        stops: tokens of each row, those of the step included.
        places: of the given rows, int64 [rows, longest]: where in the pool each token's keys are.

    """

    first: int
    starts: list[int]
    stops: list[int]
    places: torch.Tensor

    def reads(self) -> HybridReads:
        """The same for the layers; the new tokens lie row after row."""
        lengths, news = torch.tensor(self.stops), [b - a for a, b in zip(self.starts, self.stops, strict=True)]
        columns = torch.arange(self.places.shape[1])
        is_read = columns < lengths[:, None]
        is_new = is_read & (columns >= torch.tensor(self.starts)[:, None])
        bounds, ends = [0], lengths.cumsum(0)
        for count in news:
            bounds.append(bounds[-1] + count)
        keys = torch.stack((ends - lengths, ends), 1)
        decoding = [i for i, count in enumerate(news) if count == 1]
        texts = [[bounds[i], bounds[i + 1], *keys[i].tolist(), -1] for i, count in enumerate(news) if count > 1]
        delta_texts = [[bounds[i], bounds[i + 1], self.first + i, self.starts[i] > 0] for i in range(len(news))]
        return HybridReads(
            written=self.places[is_new],
            places=self.places[is_read],
            rows=torch.tensor([bounds[i] for i in decoding], dtype=torch.int64),
            spans=keys[decoding].contiguous(),
            texts=torch.tensor(texts, dtype=torch.int64),
            delta_texts=torch.tensor(delta_texts, dtype=torch.int64),
        )


def compile_rows(model: Any, cache: Any) -> Callable[[], None] | None:
    """Replace the body's `forward` for steps over `cache`, a `RowCache`; what puts it back.

    From then on the cache makes steps of this kind. None for bodies that `HybridLayers` does not take.
    """
    body = model.get_decoder()
    layers = HybridLayers.of(body, cache.tensors_by_layer())
    if layers is None:
        return None
    library = body.forward

    def forward(
        input_ids: torch.Tensor | None = None, position_ids: torch.Tensor | None = None, **kwargs: Any
    ) -> MoeModelOutputWithPast:
        step = kwargs.get("row_step")
        if not isinstance(step, CompiledRowStep) or input_ids is None or position_ids is None:
            return library(input_ids=input_ids, position_ids=position_ids, **kwargs)
        # As in compiled_step: OpenMP's threads would spin on the cores that ours work on.
        torch.set_num_threads(1)
        states = layers(input_ids.flatten(), position_ids.flatten(), step.reads())
        return MoeModelOutputWithPast(last_hidden_state=states.view(*input_ids.shape, -1))

    body.forward = forward
    cache.make_step = CompiledRowStep

    def undo() -> None:
        del body.forward
        cache.make_step = None

    return undo


def why_not_compiled(model: Any) -> str | None:
    """What keeps steps from it where the model suits: half a sentence."""
    return HybridLayers.why_not(model.get_decoder())
