"""What will be asked about products by quantized weights, told by a plan and a model that has no weights yet."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from qserve.core.schemes import SCHEMES
from qserve.model.cuda.samples import Shape
from qserve.model.cuda.trial import product_trials
from qserve.model.fp8.experts_trial import experts_trials, shapes_of_experts_ahead
from qserve.model.fp8.trial import fp8_trials, shapes_ahead
from qserve.model.stored.layouts import fp8_block
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
    plan: Plan,
    dtype: torch.dtype,
    skeleton: Callable[[], nn.Module],
    others: Callable[[torch.device], Groups],
    fused: Sequence[tuple[str, ...]] = (),
) -> None:
    """The products that the plan's layers will ask for (`product_trials_ahead`) and `others`, on each card of the plan.

    A trial's process takes half a GiB of the card for itself, and what it says is kept: who asks later finds it.
    """
    if torch.cuda.is_available():
        products = [[one] for one in product_trials_ahead(plan, dtype, skeleton, fused)]
        for device in cards_of(plan):
            tried(device, [*others(device), *products])


def product_trials_ahead(
    plan: Plan, dtype: torch.dtype, skeleton: Callable[[], nn.Module], fused: Sequence[tuple[str, ...]] = ()
) -> list[Trial]:
    """Of the layers of `skeleton` (asked for where it is needed) that is held in 8 or 4 bits; else none.

    One more than is held (a head) costs its trial; one that is not foreseen is tried beside the weights. `fused`: names
    of a module's layers that are held as one where they can be.
    """
    scheme = plan.quant.scheme
    if scheme.startswith("fp8"):
        model = skeleton()
        stored = None if plan.quant.in_flight else getattr(model.config, "quantization_config", None)
        block = fp8_block(stored) if isinstance(stored, Mapping) else None
        of_experts = experts_trials(shapes_of_experts_ahead(model, block), dtype)
        return [*fp8_trials(shapes_ahead(model, block, _together(model, fused)), dtype), *of_experts]
    if not scheme.startswith("bnb-") or SCHEMES[scheme].bits >= 16:
        return []
    model = skeleton()

    def shape(layer: nn.Linear) -> Shape:
        return Shape.as_made_by(scheme, layer.out_features, layer.in_features, has_bias=layer.bias is not None)

    shapes = [
        shape(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in ("lm_head", "score")
    ]
    joined = (Shape.behind_each_other([shape(one) for one in layers]) for layers in _together(model, fused))
    return product_trials([*shapes, *(one for one in joined if one is not None)], dtype)


def _together(model: nn.Module, fused: Sequence[tuple[str, ...]]) -> list[list[nn.Linear]]:
    return [found for names in fused for module in model.modules() if (found := _children(module, names))]


def _children(module: nn.Module, names: tuple[str, ...]) -> list[nn.Linear]:
    """The layers of these names, where all are such."""
    found = [child for name in names if isinstance(child := getattr(module, name, None), nn.Linear)]
    return found if len(found) == len(names) else []
