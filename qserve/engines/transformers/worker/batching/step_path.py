"""How a batcher runs decoding steps: by which layers, captured or not, and which kernels a card refused."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.engines.transformers.kernels.refusals import Refusal

__all__ = ["COMPILED_LAYERS", "DENSE_LAYERS", "LIBRARY_LAYERS", "StepPath"]

DENSE_LAYERS = "dense layers"
"""Ours, for cards: `decoding/body.py`."""
COMPILED_LAYERS = "compiled layers"
"""Ours, for CPUs: `model/cpu/layers.py`."""
LIBRARY_LAYERS = "library's modules"


@dataclass(frozen=True)
class StepPath:
    """Of a batcher, now.

    Attributes:
        layers: one of the names above.
        is_captured: whether each size of a step is captured as a CUDA graph.
        num_captured: sizes that were captured at start.
        why_not_captured: empty where steps are captured.
        refused: kernels of steps, and captures, that did not come about on this card.

    """

    layers: str = LIBRARY_LAYERS
    is_captured: bool = False
    num_captured: int = 0
    why_not_captured: str = "steps are captured only on a card"
    refused: tuple[Refusal, ...] = ()

    @property
    def name(self) -> str:
        """`dense layers, captured`, `dense layers`, `compiled layers`, `library's modules`."""
        return f"{self.layers}, captured" if self.is_captured else self.layers
