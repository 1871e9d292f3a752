"""How the layers of a model are run in decoding steps, and whether steps are captured: decided once, at start.

Kernels for cards are compared with torch's operations on the card at hand before they are trusted; where one is refused
torch's small operations take its place, and the others stay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from qserve.engines.transformers.kernels.refusals import Refusal, log_refusal, refusal
from qserve.engines.transformers.worker.attention.kernels import Heads
from qserve.engines.transformers.worker.decoding import check
from qserve.engines.transformers.worker.decoding.body import DenseSteps
from qserve.engines.transformers.worker.decoding.forward import Capture, capture_on_card
from qserve.engines.transformers.worker.decoding.operations import ON_CARDS, PLAIN
from qserve.model.trials.ask import tried

__all__ = ["Layers", "can_be_captured", "choose_layers", "fuses_products", "take_on_cards"]

_log = logging.getLogger("qserve.worker")


@dataclass(frozen=True)
class Layers:
    """How decoding steps run.

    Attributes:
        dense: None where the library's modules run.
        capture: None where each operation is launched by itself.
        refused: operations that torch's small ones stand in for.
        why_not_captured: empty where there is a `capture`.

    """

    dense: DenseSteps | None
    capture: Capture | None
    refused: tuple[Refusal, ...] = ()
    why_not_captured: str = ""


def fuses_products(model: Any) -> bool:
    """Whether weights are laid behind each other for steps of our own (`fused`); before there are pages of keys."""
    return model.device.type == "cuda" and DenseSteps.of(model) is not None


def choose_layers(model: Any) -> Layers:
    """For a model on one device."""
    dense = DenseSteps.of(model)
    if dense is None:
        return Layers(None, None, why_not_captured="steps of the library's modules are not captured")
    if model.device.type != "cuda":
        return Layers(dense, None, why_not_captured="steps are captured only on a card")
    refused = take_on_cards(model.device, Heads.of(model), model.config.get_text_config().hidden_size)
    if not can_be_captured(model):
        return Layers(dense, None, refused, "a library's own matrix product may wait for the card")
    return Layers(dense, capture_on_card, refused)


def take_on_cards(device: torch.device, heads: Heads, width: int, *, afresh: bool = False) -> tuple[Refusal, ...]:
    """Let cards take those kernels that are right on `device` for such layers; the others, which are refused.

    The last call holds for all models of a process. `afresh`: whatever earlier trials said.
    """
    trials = check.operation_trials(heads, width)
    verdicts = tried(device, [[one] for one in trials], afresh=afresh)
    refused = tuple(refusal(one.name, verdicts[one].reason) for one in trials if not verdicts[one].is_right)
    for one in refused:
        log_refusal(_log, one)
    right = {one.name for one in trials} - {one.kernel for one in refused}
    ON_CARDS.update(PLAIN)
    if right:
        ON_CARDS.update({name: kernel for name, kernel in check.triton_kernels().items() if name in right})
    return refused


def can_be_captured(model: Any) -> bool:
    """Whether no product asks the card for a number, as those of libraries for quantized weights may.

    Those of ours ask for none (`model/cuda/linear.py: CardLinear`).
    """
    return all(type(one) is torch.nn.Linear for one in model.modules() if isinstance(one, torch.nn.Linear))
