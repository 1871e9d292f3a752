"""Whether the card at hand computes experts in fp8 by grouped products: tried on a layer of its model's sizes.

Each tile of rows is a program of its own, and is tried in a process of its own, once (`model/trials`). Where one is
refused a right one is taken in its place; where all are, the loop of `experts.py`. That launches more and waits for the
card at any number of rows: so no time is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from qserve.engines.transformers.kernels.refusals import FP8_EXPERTS, Refusal, log_refusal, refusal
from qserve.model.cuda.products import by_pieces
from qserve.model.fp8.experts import Fp8Experts, by_loop, fp8_experts
from qserve.model.fp8.routing import GROUPED, REFUSED, TILES, ExpertsShape
from qserve.model.stored.experts import are_experts
from qserve.model.trials.ask import tried
from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = [
    "choose_grouped_experts",
    "experts_trials",
    "random_experts",
    "refused_experts",
    "routed",
    "shapes_of_experts_ahead",
    "try_experts",
    "use_grouped_experts",
]

_log = logging.getLogger("qserve.worker")

_TOP, _ROWS = 8, (1, 64, 203)
_TOLERANCE = 0.02  # of the largest number, as `trial.py` has it


def use_grouped_experts(model: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Let cards compute experts in fp8 by grouped products; says so. Nothing changes on a CPU."""
    on_cards = [layer for layer in fp8_experts(model) if layer.down_proj.device.type == "cuda"]
    found = {(layer.down_proj.device, layer.shape) for layer in on_cards if layer.can_be_grouped}
    if not found:
        return ("experts in fp8 one by one: grouped products have SiLU alone",) if on_cards else ()
    refused = [one for device, shape in found for one in choose_grouped_experts(device, shape, dtype)]
    torch.cuda.empty_cache()
    return (str(refused[0]) if refused else "experts in fp8 by grouped products: Triton's kernel",)


def choose_grouped_experts(
    device: torch.device, shape: ExpertsShape, dtype: torch.dtype, *, afresh: bool = False
) -> tuple[Refusal, ...]:
    """Try each tile, and keep the choice for `Fp8Experts`. Refused, by the first reason, is that none is right.

    `afresh`: whatever earlier trials said.
    """
    key, trials = (str(device), shape), dict(zip(TILES, experts_trials([shape], dtype), strict=True))
    verdicts = tried(device, [[one] for one in trials.values()], afresh=afresh)
    reasons = {tile: verdicts[one].reason for tile, one in trials.items() if not verdicts[one].is_right}
    right = tuple(tile for tile in TILES if tile not in reasons)
    GROUPED.pop(key, None)  # of a trial before this one
    REFUSED.pop(key, None)
    if right:
        GROUPED[key] = right
        for tile, reason in reasons.items():
            _log.info("grouped products of fp8 experts: tiles of %d rows are passed over: %s", tile, reason)
        return ()
    REFUSED[key] = reasons[TILES[0]]
    found = refusal(FP8_EXPERTS, REFUSED[key])
    log_refusal(_log, found)
    return (found,)


def refused_experts(model: nn.Module) -> tuple[Refusal, ...]:
    """Where grouped products were refused for some of `model`'s experts, by the first reason; one at most."""
    keys = ((str(layer.down_proj.device), layer.shape) for layer in fp8_experts(model))
    return tuple(refusal(FP8_EXPERTS, REFUSED[key]) for key in keys if key in REFUSED)[:1]


def shapes_of_experts_ahead(skeleton: nn.Module, block: tuple[int, int] | None) -> set[ExpertsShape]:
    """Of a model that has no weights yet: in blocks, or with a scale a row."""
    found: set[tuple[int, int, int]] = set()
    for module in skeleton.modules():
        sizes: Any = module
        if are_experts(module):
            found.add((sizes.num_experts, sizes.hidden_dim, sizes.intermediate_dim))
    return {
        ExpertsShape(
            num,
            hidden,
            inner,
            *((min(block[0], inner), min(block[1], hidden)) if block else (1, hidden)),
            *((min(block[0], hidden), min(block[1], inner)) if block else (1, inner)),
        )
        for num, hidden, inner in found
    }


def experts_trials(shapes: Iterable[ExpertsShape], dtype: torch.dtype) -> list[Trial]:
    """All that `choose_grouped_experts` wants to know of layers of `shapes`, tile by tile."""
    of = {"dtype": str(dtype).removeprefix("torch.")}
    return [
        Trial.of(FP8_EXPERTS, f"{__name__}:try_experts", tile=tile, **of, **asdict(shape))
        for shape in shapes
        for tile in TILES
    ]


@torch.no_grad()
def try_experts(device: str, *, name: str, dtype: str, tile: int, **shape: int) -> None:
    """Raises where `name`, a grouped product of `tile` rows at once, is not for experts of `shape`.

    Compared with the loop in float32; all rows have one of the experts, and none another.
    """
    from qserve.model.fp8.triton_experts import grouped

    experts = random_experts(device, ExpertsShape(**shape))
    for num in _ROWS:
        states, chosen, shares = routed(device, num, min(_TOP, experts.num_experts), experts, getattr(torch, dtype))
        meant = by_loop(experts, states.float(), chosen, shares.float(), by_pieces)
        said = grouped(states, chosen, shares, *experts.weights, (tile,))
        off = _off_by(said, meant)
        if not off <= _TOLERANCE:
            raise TrialRefused(f"{name}: wrong by {off:.2g} of the largest number ({num} rows, tiles of {tile})")


def _off_by(said: torch.Tensor, meant: torch.Tensor) -> float:
    return float((said.float() - meant).abs().max() / meant.abs().max())


def random_experts(device: str, shape: ExpertsShape) -> Fp8Experts:
    """Codes of all sizes; drawn expert by expert, since drawn numbers are wider than codes."""
    of = {"num_experts": shape.experts, "hidden_dim": shape.hidden, "intermediate_dim": shape.inner}
    blocks = (shape.gate_rows, shape.gate_columns), (shape.down_rows, shape.down_columns)
    sizes = (shape.inner, shape.hidden), (shape.hidden, shape.inner)
    gate, down = (
        tuple(-(-size // part) for size, part in zip(both, block, strict=True))
        for both, block in zip(sizes, blocks, strict=True)
    )
    block = None if shape.gate_rows == 1 else (max(blocks[0][0], blocks[1][0]), max(blocks[0][1], blocks[1][1]))
    experts = Fp8Experts(SimpleNamespace(**of, act_fn=nn.SiLU()), "_scale", gate, down, block)
    for name, one in list(experts.named_parameters()):
        experts.register_parameter(name, nn.Parameter(torch.empty_like(one, device=device), requires_grad=False))
    generator = torch.Generator(device).manual_seed(0)
    for weight in experts.weights:
        for codes in weight.codes:
            codes.copy_(torch.randn(codes.shape, generator=generator, device=device).mul_(100).clamp_(-448, 448))
        drawn = torch.rand(weight.scales.shape, generator=generator, device=device)
        weight.scales.copy_(drawn.add_(0.5).div_(100 * weight.inputs**0.5))
    return experts


def routed(
    device: str, num: int, top: int, experts: Fp8Experts, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, their experts and shares: all of them have the last expert, and none the first, where there is a choice."""
    generator = torch.Generator().manual_seed(num)
    drawn = torch.rand(num, experts.num_experts, generator=generator)
    drawn[:, 0], drawn[:, -1] = -1.0, 2.0
    shares, chosen = drawn.topk(top, dim=1)
    states = torch.randn(num, experts.hidden_dim, generator=generator)
    return states.to(device, dtype), chosen.to(device), (shares + 1).softmax(1).to(device, dtype)
