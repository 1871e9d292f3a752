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
from qserve.engine.transformers.decoding.forward import Capture, capture_on_card
from qserve.engine.transformers.decoding.operations import PLAIN, register_for_cards

__all__ = ["Layers", "are_right", "choose_layers"]

_log = logging.getLogger("qserve.worker")
# Of values of about one: bf16 rounds to 1/256.
_TOLERANCE = 0.03


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
    # Quantized products ask the card for numbers, which can't be captured.
    is_plain = all(type(one) is torch.nn.Linear for one in model.modules() if isinstance(one, torch.nn.Linear))
    return Layers(dense, capture_on_card if is_plain else None)


def are_right(device: torch.device, heads: Heads, width: int) -> bool:
    """Whether `operations` do on `device` what torch's small operations do there. Raises what they raise."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, heads.dtype)

    tokens, rows = 3, 40
    write_index = torch.tensor([33, 2, 17], device=device)
    cases = [
        ("add_rms_norm", (some(tokens, width), some(tokens, width), some(width), 1e-6)),
        ("add_rms_norm", (some(tokens, width), None, some(width), 1e-6)),
        ("silu_and_multiply", (some(tokens, 3 * width), some(tokens, 3 * width))),
        *(
            (
                "rotate_and_store",
                (
                    some(tokens, heads.num, heads.size), some(tokens, heads.num_of_keys, heads.size),
                    some(tokens, heads.num_of_keys, heads.size), *weights, 1e-6, some(tokens, heads.size),
                    some(tokens, heads.size), some(rows, heads.num_of_keys, heads.size),
                    some(rows, heads.num_of_keys, heads.size), write_index,
                ),
            )
            for weights in ((some(heads.size), some(heads.size)), (None, None))
        ),
    ]  # fmt: skip
    return all(_same(name, arguments) for name, arguments in cases)


def _same(name: str, arguments: tuple[Any, ...]) -> bool:
    """The answers and what was written to."""
    again = tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in arguments)
    said = [getattr(torch.ops.qserve, name)(*arguments), *arguments]
    meant = [PLAIN[name](*again), *again]
    return all(
        torch.allclose(one.float(), other.float(), atol=_TOLERANCE, rtol=_TOLERANCE)
        for one, other in zip(said, meant, strict=True)
        if isinstance(one, torch.Tensor)
    )
