"""How the layers of a model are run in decoding steps, and whether steps are captured: decided once, at start.

Kernels for cards are compared with torch's operations on the card at hand before they are trusted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from qserve.engine.transformers.attention.kernels import Heads
from qserve.engine.transformers.decoding.body import DenseSteps
from qserve.engine.transformers.decoding.check import are_right
from qserve.engine.transformers.decoding.forward import Capture, capture_on_card
from qserve.engine.transformers.decoding.operations import register_for_cards

__all__ = ["Layers", "can_be_captured", "choose_layers"]

_log = logging.getLogger("qserve.worker")


@dataclass(frozen=True)
class Layers:
    """`dense`: None where the library's modules run. `capture`: None where each operation is launched by itself."""

    dense: DenseSteps | None
    capture: Capture | None


def choose_layers(model: Any) -> Layers:
    """For a model on one device."""
    dense = DenseSteps.of(model)
    if dense is None:
        return Layers(None, None)
    if model.device.type != "cuda":
        return Layers(dense, None)
    why_not = register_for_cards()
    try:
        is_right = are_right(model.device, Heads.of(model), model.config.get_text_config().hidden_size)
    except Exception as error:
        is_right, why_not = False, f"{type(error).__name__}: {error}"
    if not is_right:
        _log.warning("kernels between a layer's products are wrong on this card (%s): the library's run", why_not)
        return Layers(None, None)
    if why_not:
        _log.warning("%s: operations between a layer's products are launched one by one", why_not)
    return Layers(dense, capture_on_card if can_be_captured(model) else None)


def can_be_captured(model: Any) -> bool:
    """Whether no product asks the card for a number, as those of libraries for quantized weights may.

    Those of ours ask for none (`model/card/linear.py: CardLinear`).
    """
    return all(type(one) is torch.nn.Linear for one in model.modules() if isinstance(one, torch.nn.Linear))
