"""python -m qserve.engines.transformers.worker.kernel_trial: tries the engine's kernels on each card, as workers do.

Standard output has one JSON object a card: `card`, `tried` and `refused` (`Refusal`). Standard error has all that the
compiler said. Without a model: its shapes are those of an 8B's layer. Whatever verdicts are kept, all is tried again,
and what comes of it is kept.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from qserve.engines.transformers.kernels.compiler_errors import reason_of
from qserve.engines.transformers.kernels.refusals import (
    CAPTURE,
    FOUR_BIT_PRODUCT,
    FP8_EXPERTS,
    INT8_PRODUCT,
    OPERATIONS,
    PAGED_ATTENTION,
    TEXT_ATTENTION,
    TOP_P_DRAW,
    Refusal,
    log_refusal,
    refusal,
)
from qserve.engines.transformers.worker.attention.kernels import Heads, choose_kernel
from qserve.engines.transformers.worker.attention.texts import refused_texts, text_trials
from qserve.engines.transformers.worker.decoding.choose import take_on_cards
from qserve.engines.transformers.worker.decoding.forward import capture_on_card
from qserve.engines.transformers.worker.decoding.operations import add_rms_norm, silu_and_multiply
from qserve.engines.transformers.worker.sampling.nucleus import choose_draw
from qserve.model.cuda.choices import refusals_for
from qserve.model.cuda.linear import CardLinear
from qserve.model.cuda.samples import Shape, random_weight
from qserve.model.cuda.trial import choose_products
from qserve.model.fp8.experts_trial import choose_grouped_experts
from qserve.model.fp8.routing import ExpertsShape

__all__ = ["main", "try_kernels"]

_log = logging.getLogger("qserve.worker")
_WIDTH, _VOCAB_SIZE, _HEADS = 4096, 151_936, Heads(32, 8, 128, torch.bfloat16)


def main() -> None:
    """Try all cards that torch sees."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    for number in range(torch.cuda.device_count()):
        with torch.cuda.device(number):
            device = torch.device("cuda", number)
            document = {"card": torch.cuda.get_device_name(device), **try_kernels(device)}
        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def try_kernels(device: torch.device, heads: Heads = _HEADS, width: int = _WIDTH) -> dict[str, Any]:
    """`tried`: the names; `refused`: each `Refusal` as a dict."""
    tried = [*OPERATIONS, CAPTURE, PAGED_ATTENTION, TOP_P_DRAW]
    tried += [TEXT_ATTENTION] if text_trials(device, heads) else []
    refused = [
        *take_on_cards(device, heads, width, afresh=True),
        *_refused_capture(device, heads, width),
        *choose_kernel(device, heads, afresh=True).refused,
        *choose_draw(device, _VOCAB_SIZE, afresh=True),
    ]
    if TEXT_ATTENTION in tried and (of_texts := refused_texts(device, heads, afresh=True)) is not None:
        refused.append(of_texts)
    if find_spec("bitsandbytes"):
        tried += [INT8_PRODUCT, FOUR_BIT_PRODUCT]
        refused += _refused_products(device, heads, width)
    tried.append(FP8_EXPERTS)
    refused += choose_grouped_experts(device, _experts(width), heads.dtype, afresh=True)
    return {"tried": tried, "refused": [asdict(one) for one in refused]}


def _refused_capture(device: torch.device, heads: Heads, width: int) -> Iterator[Refusal]:
    """Of a product between two operations of a layer."""
    states, weight = (torch.ones(1, width, device=device, dtype=heads.dtype) for _ in range(2))
    product = nn.Linear(width, width, bias=False, device=device, dtype=heads.dtype).requires_grad_(False)

    def forward() -> torch.Tensor:
        normed = add_rms_norm(states, None, weight[0], 1e-6)
        return silu_and_multiply(product(normed), normed)

    try:
        forward()
        capture_on_card(forward)()
    except Exception as error:
        found = refusal(CAPTURE, reason_of(error))
        log_refusal(_log, found)
        yield found


def _experts(width: int) -> ExpertsShape:
    """Few, with blocks as the official files have them."""
    inner = width // 4
    return ExpertsShape(16, width, inner, min(128, inner), min(128, width), min(128, width), min(128, inner))


def _refused_products(device: torch.device, heads: Heads, width: int) -> tuple[Refusal, ...]:
    shapes = [Shape.as_made_by(scheme, width, width, has_bias=False) for scheme in ("bnb-int8", "bnb-nf4")]
    layers = nn.Sequential(*(CardLinear(random_weight(shape, device), None) for shape in shapes))
    choose_products(layers, heads.dtype, afresh=True)
    return refusals_for(layers)


if __name__ == "__main__":
    main()
