"""What will be asked about products by quantized weights, told by a plan and a model that has no weights yet."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

from qserve.core.schemes import SCHEMES
from qserve.model.cuda.samples import Shape
from qserve.model.cuda.trial import product_trials
from qserve.model.trials.ask import tried
from qserve.model.trials.children import Groups
from qserve.model.trials.verdicts import Trial
from qserve.planner.plan import Plan

__all__ = ["cards_of", "product_trials_ahead", "try_before_loading"]

_CARD = re.compile(r"(?:cuda:)?(\d+)")


def cards_of(plan: Plan) -> list[torch.device]:
    """Those that the plan places modules on, that of the embedding first; every one that torch sees for "auto"."""
    placed = plan.placement.device_map
    if placed is None or placed == "cpu":
        return []
    if placed == "auto":
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    places = [placed] if isinstance(placed, str) else placed.values()
    found = [_CARD.fullmatch(str(place)) for place in places]
    return [torch.device("cuda", index) for index in dict.fromkeys(int(one[1]) for one in found if one)]


def try_before_loading(
    plan: Plan, dtype: torch.dtype, skeleton: Callable[[], nn.Module], others: Callable[[torch.device], Groups]
) -> None:
    """The products that the plan's layers will ask for and `others`, on each card of the plan.

    A trial's process takes half a GiB of the card for itself, and what it says is kept: who asks later finds it.
    """
    if torch.cuda.is_available():
        products = [[one] for one in product_trials_ahead(plan, dtype, skeleton)]
        for device in cards_of(plan):
            tried(device, [*others(device), *products])


def product_trials_ahead(plan: Plan, dtype: torch.dtype, skeleton: Callable[[], nn.Module]) -> list[Trial]:
    """Of the layers of `skeleton` (asked for where it is needed) that bitsandbytes will hold; else none.

    One more than is held (a head) costs its trial; one that is not foreseen is tried beside the weights.
    """
    scheme = plan.quant.scheme
    if not scheme.startswith("bnb-") or SCHEMES[scheme].bits >= 16:
        return []
    layers = [
        module
        for name, module in skeleton().named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in ("lm_head", "score")
    ]
    shapes = (
        Shape.as_made_by(scheme, one.out_features, one.in_features, has_bias=one.bias is not None) for one in layers
    )
    return product_trials(shapes, dtype)
