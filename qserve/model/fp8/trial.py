"""Which product by weights in fp8 the card at hand takes: tried at start on the model's own, the fastest right one.

Nothing here has a figure for a card: what a card refuses is passed over by its reason, and of the others the time
decides, for every shape and number of rows that decoding has, and for many rows at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from statistics import median

import torch
from torch import nn

from qserve.engines.transformers.kernels.compiler_errors import reason_of
from qserve.engines.transformers.kernels.quantized_products import ROW_TILES
from qserve.model.cuda.products import BY_PIECES, Key, by_pieces
from qserve.model.fp8.experts import Fp8Experts
from qserve.model.fp8.linear import fp8_linears
from qserve.model.fp8.products import CHOSEN, MANY, PRODUCTS, SCALED, candidates, key_of, rounded
from qserve.model.fp8.weight import Fp8Weight

__all__ = ["Fp8Trials", "choose_fp8_products", "use_fp8_products"]

_log = logging.getLogger("qserve.worker")

_MANY_ROWS = 1024
# Of the largest number: 16 bit rounds to 1/256, and a piece of a weight is rounded before it is multiplied.
_TOLERANCE = 0.02
# Weights of one shape that are read in turn, so that none is found in the card's cache.
_WEIGHTS, _ROUNDS = 8, 5

Seconds = Callable[[Callable[[], object]], float]
Held = tuple[Fp8Weight, torch.Tensor | None]


@dataclass
class Fp8Trials:
    """`chosen` by shape and rows; `passed_over`: by name, the first reason why a product was not for some shape."""

    chosen: dict[Key, str] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)

    def pass_over(self, name: str, reason: str) -> None:
        """That the product `name` is not for some shape. The log hears the first reason."""
        if name not in self.passed_over:
            self.passed_over[name] = reason
            _log.info("by weights in fp8, %s is passed over: %s", name, reason)

    @property
    def sentence(self) -> str:
        """For the user."""
        parts = [f"{_rows_of(tile)} {self._names(tile)}" for tile in (*ROW_TILES, MANY)]
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over.items())
        return f"products by weights in fp8: {', '.join(parts)}" + (f" (passed over: {reasons})" if reasons else "")

    def _names(self, tile: int) -> str:
        names = [name for key, name in self.chosen.items() if key[-1] == tile]
        return " or ".join(sorted(set(names), key=names.count, reverse=True))


def _rows_of(tile: int) -> str:
    if tile == MANY:
        return "more rows by"
    before = {1: 0, **dict(zip(ROW_TILES[1:], ROW_TILES, strict=False))}[tile]
    return "1 row by" if tile == 1 else f"{before + 1} to {tile} by"


def use_fp8_products(model: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Let cards multiply by weights in fp8 in the way that is fastest on them; says which. Nothing changes on a CPU."""
    if not any(weight.codes.device.type == "cuda" for weight, _ in _held(model)):
        return ()
    trials = choose_fp8_products(model, dtype)
    torch.cuda.empty_cache()
    return (trials.sentence,)


@torch.no_grad()
def choose_fp8_products(model: nn.Module, dtype: torch.dtype, seconds: Seconds | None = None) -> Fp8Trials:
    """Try all products on `model`'s weights, and keep the choice for `products.multiply`. `seconds` measures a call."""
    trials = Fp8Trials()
    for held in _by_shape(model).values():
        for num in (*ROW_TILES, _MANY_ROWS):
            weight = held[0][0]
            rows = _some_rows(weight, num, dtype)
            trials.chosen[key_of(rows, weight)] = _fastest(held, rows, seconds or _on_card, trials.pass_over)
    CHOSEN.update(trials.chosen)
    return trials


def _held(model: nn.Module) -> Iterator[Held]:
    """Weights and biases that lie where they compute; of a layer's experts a few."""
    for layer in fp8_linears(model):
        yield layer.held, layer.bias
    for module in model.modules():
        if isinstance(module, Fp8Experts) and not hasattr(module, "_hf_hook"):
            for expert in range(min(_WEIGHTS, module.num_experts)):
                upper, down = module.held(expert)
                yield from ((one, None) for one in (*upper, down))


def _by_shape(model: nn.Module) -> dict[tuple[object, ...], list[Held]]:
    found: dict[tuple[object, ...], list[Held]] = {}
    for weight, bias in _held(model):
        shape = str(weight.codes.device), weight.kind, weight.block, weight.outputs, weight.inputs
        found.setdefault(shape, []).append((weight, bias))
    return {shape: held[:_WEIGHTS] for shape, held in found.items()}


def _fastest(held: list[Held], rows: torch.Tensor, seconds: Seconds, pass_over: Callable[[str, str], None]) -> str:
    """Of the products that are right; pieces where none is. `pass_over` hears of the others: name and reason."""
    times: dict[str, float] = {}
    for name in candidates(held[0][0], len(rows)):
        try:
            reason = _why_not(name, *held[0], rows)
            if reason:
                pass_over(name, reason)
            else:
                times[name] = seconds(partial(_run, name, held, rows))
        except Exception as error:
            pass_over(name, reason_of(error))
    return min(times, key=lambda name: times[name], default=BY_PIECES)


def _why_not(name: str, weight: Fp8Weight, bias: torch.Tensor | None, most: torch.Tensor) -> str:
    """Compared with the product in float32 of what it takes the rows for; also for an odd number of them."""
    for rows in (most, most[: max(1, len(most) - 3)]):
        taken = rounded(rows, weight) if name == SCALED else rows.float()
        meant = by_pieces(taken, weight, None if bias is None else bias.float())
        said = PRODUCTS[name](rows, weight, bias)
        off = float((said.float() - meant).abs().max() / meant.abs().max())
        if not off <= _TOLERANCE:
            shape = f"{weight.outputs} × {weight.inputs}, {len(rows)} rows"
            return f"it is wrong by {off:.2g} of the largest number ({shape})"
    return ""


def _some_rows(weight: Fp8Weight, num: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num)
    return torch.randn(num, weight.inputs, generator=generator).to(weight.codes.device, dtype)


def _run(name: str, held: list[Held], rows: torch.Tensor) -> None:
    for weight, bias in islice(cycle(held), _WEIGHTS):
        PRODUCTS[name](rows, weight, bias)


def _on_card(call: Callable[[], object]) -> float:
    """Seconds of `call` on the current card, its median; the first one, which compiles, left out."""
    call()
    torch.cuda.synchronize()
    taken = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1000)
    return float(median(taken))
