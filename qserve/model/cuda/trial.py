"""Which product few rows take on the card at hand: the fastest right one, tried on weights of the model's shapes.

Nothing here has a figure for a card: a kernel that does not compile, faults, is wrong, or takes more memory than is
planned is passed over by its reason, and of the others the time decides, for every shape and number of rows that
decoding has. Each is tried in a process of its own, once (`model/trials`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch import nn

from qserve.engines.transformers.kernels.quantized_products import ROW_TILES, SCRATCH_BYTES
from qserve.engines.transformers.kernels.refusals import log_refusal, product_name, refusal
from qserve.model.cuda.linear import CardLinear, card_linears, compute_on_cards
from qserve.model.cuda.products import BY_PIECES, CHOSEN, KERNEL, LIBRARY, PRODUCTS, REFUSED, Key, Product, by_pieces
from qserve.model.cuda.samples import Shape, random_weight
from qserve.model.cuda.weights import INT8
from qserve.model.trials.ask import tried
from qserve.model.trials.verdicts import Trial, TrialRefused, Verdict

__all__ = ["Trials", "choose_products", "product_trials", "try_product", "use_card_products"]

_log = logging.getLogger("qserve.worker")

# Of the largest number: 16 bit rounds to 1/256, and a weight of 4 bits is rounded before it is multiplied.
_TOLERANCE = 0.02
# Layers of one shape whose weights are read in turn, so that none is found in the card's cache (128 MiB at most).
_LAYERS, _ROUNDS = 8, 5
_CACHE_BYTES = 256 * 1024**2
# Beside the rows and the answer; above, a product unpacks the whole weight.
_MOST_SCRATCH_BYTES = SCRATCH_BYTES + 16 * 1024**2


@dataclass
class Trials:
    """`chosen` by shape and rows; `passed_over`: why others were not, by name; `refused`: where our kernel was not."""

    chosen: dict[Key, str] = field(default_factory=dict)
    passed_over: dict[str, str] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)

    def pass_over(self, key: Key, name: str, reason: str) -> None:
        """That the product `name` is not for this key. Of our kernel the log hears the first reason of each kind."""
        self.passed_over.setdefault(name, reason)
        if name != KERNEL:
            return
        if all(known[1] != key[1] for known in self.refused):
            log_refusal(_log, refusal(product_name(key[1]), reason))
        self.refused[key] = reason

    @property
    def sentence(self) -> str:
        """For the user."""
        tiles = sorted({key[-1] for key in self.chosen})
        parts = [f"{_rows_of(tile)} {self._names(tile)}" for tile in tiles]
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.passed_over.items())
        return f"products by quantized weights: {', '.join(parts)}, more rows {BY_PIECES}" + (
            f" (passed over: {reasons})" if reasons else ""
        )

    def _names(self, tile: int) -> str:
        names = [name for key, name in self.chosen.items() if key[-1] == tile]
        return " or ".join(sorted(set(names), key=names.count, reverse=True))


def _rows_of(tile: int) -> str:
    before = {1: 0, **dict(zip(ROW_TILES[1:], ROW_TILES, strict=False))}[tile]
    return "1 row by" if tile == 1 else f"{before + 1} to {tile} by"


def use_card_products(model: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Let cards multiply what bitsandbytes holds by our own products; says which. Nothing changes on a CPU."""
    if not compute_on_cards(model):
        return ()
    trials = choose_products(model, dtype)
    torch.cuda.empty_cache()
    return (trials.sentence,)


def choose_products(model: nn.Module, dtype: torch.dtype, *, afresh: bool = False) -> Trials:
    """Try all products by the shapes of `model`'s layers and keep the choice for `products.by_rows`.

    `afresh`: whatever earlier trials said.
    """
    found = Trials()
    asked: dict[Key, list[Trial]] = {}
    for layer in card_linears(model):
        for tile in ROW_TILES:
            key = str(layer.device), layer.kind, layer.out_features, layer.in_features, tile
            if key not in asked:
                asked[key] = _trials(Shape.of(layer), tile, dtype)
    for device in dict.fromkeys(key[0] for key in asked):
        own = {key: trials for key, trials in asked.items() if key[0] == device}
        verdicts = tried(torch.device(device), [[one] for trials in own.values() for one in trials], afresh=afresh)
        for key, trials in own.items():
            _decide(found, key, {one.name: verdicts[one] for one in trials})
    CHOSEN.update(found.chosen)
    REFUSED.update(found.refused)
    return found


def _decide(found: Trials, key: Key, verdicts: Mapping[str, Verdict]) -> None:
    """The fastest of those that are right; torch's own product where none is."""
    REFUSED.pop(key, None)  # of a trial before this one
    seconds = {name: verdict.result for name, verdict in verdicts.items() if verdict.is_right}
    for name in verdicts.keys() - seconds.keys():
        found.pass_over(key, name, verdicts[name].reason)
    found.chosen[key] = min(seconds, key=lambda name: seconds[name]) if seconds else BY_PIECES


def product_trials(shapes: Iterable[Shape], dtype: torch.dtype) -> list[Trial]:
    """All that `choose_products` wants to know of layers of `shapes`."""
    return [one for shape in dict.fromkeys(shapes) for tile in ROW_TILES for one in _trials(shape, tile, dtype)]


def _trials(shape: Shape, tile: int, dtype: torch.dtype) -> list[Trial]:
    of = {"dtype": str(dtype).removeprefix("torch."), "tile": tile, **shape.to_json()}
    return [Trial.of(name, f"{__name__}:try_product", **of) for name in _candidates(shape.kind)]


@torch.no_grad()
def try_product(device: str, *, name: str, dtype: str, tile: int, **shape: Any) -> float:
    """Seconds that the product `name` takes for layers of `shape` and `tile` rows; raises where it is not for them."""
    layers = _layers(device, Shape.from_json(shape), getattr(torch, dtype))
    rows = _some_rows(layers[0], tile, getattr(torch, dtype))
    reason = _why_not(PRODUCTS[name], layers[0], rows)
    if reason:
        raise TrialRefused(reason)
    return _on_card(partial(_run, PRODUCTS[name], layers, rows))


@lru_cache(maxsize=1)
def _layers(device: str, shape: Shape, dtype: torch.dtype) -> list[CardLinear]:
    """With random numbers, and more bytes than a card's cache has, where so many layers have them."""
    place, generator = torch.device(device), torch.Generator().manual_seed(1)
    bias = torch.randn(shape.outputs, generator=generator).to(place, dtype) if shape.has_bias else None
    first = CardLinear(random_weight(shape, place), bias)
    num = min(_LAYERS, 1 + _CACHE_BYTES // sum(one.nbytes for one in first.buffers()))
    return [first, *(CardLinear(random_weight(shape, place, seed), bias) for seed in range(1, num))]


def _candidates(kind: str) -> Iterator[str]:
    if kind != INT8:
        yield LIBRARY
    yield KERNEL
    yield BY_PIECES


def _why_not(product: Product, layer: CardLinear, most: torch.Tensor) -> str:
    """Compared with the product in float32, for the most rows and, where there are fewer, for an odd number."""
    weight = layer.held
    bias = None if layer.bias is None else layer.bias.float()
    for rows in (most, most[: max(1, len(most) - 3)]):
        meant = by_pieces(rows.float(), weight, bias)
        before = _allocated_so_far(rows.device)
        said = product(rows, weight, layer.bias)
        scratch = _allocated_so_far(rows.device) - before - said.nbytes
        shape = f"{weight.outputs} × {weight.inputs}, {len(rows)} rows"
        if scratch > _MOST_SCRATCH_BYTES:
            return f"it unpacks whole weights ({shape})"
        off = float((said.float() - meant).abs().max() / meant.abs().max())
        if not off <= _TOLERANCE:
            return f"it is wrong by {off:.2g} of the largest number ({shape})"
    return ""


def _some_rows(layer: CardLinear, num: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num)
    return torch.randn(num, layer.in_features, generator=generator).to(layer.device, dtype)


def _run(product: Product, layers: list[CardLinear], rows: torch.Tensor) -> None:
    for layer in islice(cycle(layers), _LAYERS):
        product(rows, layer.held, layer.bias)


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


def _allocated_so_far(device: torch.device) -> int:
    """Bytes that torch's allocator has given out since the start, those that came back too; zero on a CPU."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))
