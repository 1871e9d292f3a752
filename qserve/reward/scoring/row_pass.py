"""A packed row through a dense bf16 decoder on a CPU: what lies between the matrix products is compiled C."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from qserve.model.cpu import kernels
from qserve.model.cpu.dense import Attend, DenseBody
from qserve.model.cpu.layers import Reads
from qserve.reward.scoring.attention import RowLayout, segment_sdpa

__all__ = ["RowPass", "attending", "segments_of"]


@dataclass(frozen=True)
class RowPass:
    """What `RowPass.of` made of a body."""

    dense: DenseBody

    @classmethod
    def of(cls, body: Any) -> RowPass | None:
        """None where the body does not suit or there is no compiled library (`DenseBody.of`)."""
        dense = DenseBody.of(body)
        return None if dense is None else cls(dense)

    @staticmethod
    def why_not(body: Any) -> str | None:
        """What keeps a body that it would suit from it, for people."""
        why = DenseBody.why_not(body)
        return why and f"rows are computed by torch's operations, at about half the speed: {why}"

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, layout: RowLayout, wanted: torch.Tensor
    ) -> torch.Tensor:
        """Last hidden states [wanted, hidden size] of the row `ids` [tokens]. `wanted` are places in it."""
        segments = segments_of(layout)
        return self.dense(ids, positions, Reads(segments), attending(layout, segments), wanted)


def segments_of(layout: RowLayout) -> torch.Tensor:
    """The texts of a row as `kernels.attend` has them."""
    begins = {segment.start: index for index, segment in enumerate(layout.segments)}
    return torch.tensor(
        [
            (one.start, one.stop) * 2 + (begins[one.shared_start] if one.shared_stop > one.shared_start else -1,)
            for one in layout.segments
        ],
        dtype=torch.int64,
    )


def attending(layout: RowLayout, segments: torch.Tensor) -> Attend:
    """Attention over the row that `layout` describes, for every layer of a pass."""

    def attend(attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        size = attention.head_dim
        if kernels.can_attend(size):
            return kernels.attend(query, key, value, size, attention.scaling, segments)
        q, k, v = (part.view(1, len(part), -1, size).transpose(1, 2) for part in (query, key, value))
        return segment_sdpa(attention, q, k, v, None, attention.scaling, layout=layout)[0].flatten(2)[0]

    return attend
