"""Which code computes a model's steps in this process, and which kernels of ours its card refused.

For GET /v1/qserve/memory, and for benchmarks: a figure means nothing where a fallback ran in a kernel's place.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from qserve.engines.transformers.kernels.refusals import Refusal
from qserve.engines.transformers.worker.batching.batcher import Batcher
from qserve.engines.transformers.worker.batching.step_path import DENSE_LAYERS
from qserve.model.cuda.choices import chosen_for, refusals_for
from qserve.model.fp8.choices import chosen_in_fp8
from qserve.model.fp8.experts_trial import refused_experts

__all__ = ["CodePath", "code_path"]


@dataclass(frozen=True)
class CodePath:
    """Of one model and the batcher that runs it.

    Attributes:
        batcher: the class, `PagedBatcher` or `RowBatcher`.
        attention: the kernel: `sdpa`, `compiled`, or one of `engines/transformers/kernels/attention_kernels.py`.
        path: `dense layers, captured` · `dense layers` · `compiled layers` · `library's modules`.
        is_dense: whether our own layers for cards run decoding steps.
        is_captured: whether decoding steps are captured as CUDA graphs.
        num_captured: sizes of a batch that were captured at start.
        why_not_captured: empty where steps are captured.
        products: by kind of quantized weight (int8, nf4, fp4, fp8 in blocks or rows, fp8 experts) and the most rows (0:
            more than a kernel takes), the products that were chosen; empty on a CPU and for models whose weights no
            product of ours takes.
        refused: every kernel of ours that this card refused; empty on a CPU.

    """

    batcher: str
    attention: str
    path: str
    is_dense: bool
    is_captured: bool
    num_captured: int
    why_not_captured: str
    products: dict[str, dict[int, tuple[str, ...]]]
    refused: tuple[Refusal, ...]

    @property
    def is_as_intended(self) -> bool:
        """Whether no kernel of ours was refused."""
        return not self.refused

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def code_path(model: Any, batcher: Batcher) -> CodePath:
    """Of `model` as loaded and its `batcher`, which has started. Captures come with steps: ask again after some."""
    steps = batcher.step_path
    return CodePath(
        batcher=type(batcher).__name__,
        attention=batcher.attention,
        path=steps.name,
        is_dense=steps.layers == DENSE_LAYERS,
        is_captured=steps.is_captured,
        num_captured=steps.num_captured,
        why_not_captured=steps.why_not_captured,
        products={**chosen_for(model), **chosen_in_fp8(model)},
        refused=(*refusals_for(model), *refused_experts(model), *steps.refused),
    )
