"""Which product by weights in fp8 the card at hand takes: the fastest right one, tried on weights of its shapes.

Nothing here has a figure for a card: what a card refuses is passed over by its reason, and of the others the time
decides, for every shape and number of rows that decoding has, and for many rows at once. Each is tried in a process of
its own, once (`model/trials`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from torch import nn

from qserve.engines.transformers.kernels.quantized_products import ROW_TILES
from qserve.model.cuda.products import BY_PIECES, Key, by_pieces
from qserve.model.fp8.experts import Fp8Experts
from qserve.model.fp8.linear import fp8_linears
from qserve.model.fp8.products import CHOSEN, MANY, PRODUCTS, SCALED, candidates, key_of, rounded
from qserve.model.fp8.weight import CODES, Fp8Weight
from qserve.model.stored.experts import are_experts
from qserve.model.trials.ask import tried
from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = [
    "Fp8Shape",
    "Fp8Trials",
    "choose_for_weights",
    "choose_fp8_products",
    "fp8_trials",
    "shapes_ahead",
    "try_fp8_product",
    "use_fp8_products",
]

_log = logging.getLogger("qserve.worker")

_MANY_ROWS = 1024
# Of the largest number: 16 bit rounds to 1/256, and a piece of a weight is rounded before it is multiplied.
_TOLERANCE = 0.02
# Weights of one shape that are read in turn, so that none is found in the card's cache (128 MiB at most).
_WEIGHTS, _ROUNDS = 8, 5
_CACHE_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Fp8Shape:
    """Of a weight: what a product is chosen by."""

    outputs: int
    inputs: int
    block_rows: int
    block_columns: int

    @classmethod
    def of(cls, weight: Fp8Weight) -> Fp8Shape:
        """Of one that is there."""
        return cls(weight.outputs, weight.inputs, *weight.block)

    @classmethod
    def behind_each_other(cls, parts: Sequence[Fp8Shape]) -> Fp8Shape | None:
        """Of one weight in the memory of all `parts`; None where a block would reach from one into the next."""
        first = parts[0]
        if len({replace(part, outputs=0) for part in parts}) > 1 or any(one.outputs % one.block_rows for one in parts):
            return None
        return replace(first, outputs=sum(part.outputs for part in parts))

    def random_weight(self, device: torch.device, seed: int = 0) -> Fp8Weight:
        """Codes of all sizes."""
        drawn = partial(torch.randn, generator=torch.Generator(device).manual_seed(seed), device=device)
        codes = drawn(self.outputs, self.inputs).mul_(100).clamp_(-448, 448).to(CODES)
        sizes = -(-self.outputs // self.block_rows), -(-self.inputs // self.block_columns)
        return Fp8Weight(codes, drawn(*sizes).abs_().div_(1000), (self.block_rows, self.block_columns))


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


def shapes_ahead(
    skeleton: nn.Module, block: tuple[int, int] | None, together: Iterable[Sequence[nn.Linear]] = ()
) -> set[Fp8Shape]:
    """Of what will be in fp8 of a model that has no weights yet: in blocks, or with a scale a row.

    `together`: layers that are held as one where they can be.
    """

    def shape(outputs: int, inputs: int) -> Fp8Shape:
        return Fp8Shape(outputs, inputs, *((min(block[0], outputs), min(block[1], inputs)) if block else (1, inputs)))

    found: set[tuple[int, int]] = set()
    for name, module in skeleton.named_modules():
        sizes: Any = module
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in ("lm_head", "score"):
            found.add((module.out_features, module.in_features))
        elif are_experts(module):
            found |= {(2 * sizes.intermediate_dim, sizes.hidden_dim), (sizes.hidden_dim, sizes.intermediate_dim)}
    joined = (
        Fp8Shape.behind_each_other([shape(one.out_features, one.in_features) for one in layers]) for layers in together
    )
    return {shape(*one) for one in found} | {one for one in joined if one is not None}


def use_fp8_products(model: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Let cards multiply by weights in fp8 in the way that is fastest on them; says which. Nothing changes on a CPU."""
    if not any(weight.codes.device.type == "cuda" for weight in _held(model)):
        return ()
    trials = choose_fp8_products(model, dtype)
    torch.cuda.empty_cache()
    return (trials.sentence,)


def choose_fp8_products(model: nn.Module, dtype: torch.dtype, *, afresh: bool = False) -> Fp8Trials:
    """Try all products by the shapes of `model`'s weights, and keep the choice for `products.multiply`.

    `afresh`: whatever earlier trials said.
    """
    return choose_for_weights(_held(model), dtype, afresh=afresh)


def choose_for_weights(held: Iterable[Fp8Weight], dtype: torch.dtype, *, afresh: bool = False) -> Fp8Trials:
    """See `choose_fp8_products`."""
    found = Fp8Trials()
    asked: dict[torch.device, dict[Fp8Shape, Fp8Weight]] = {}
    for weight in held:
        asked.setdefault(weight.codes.device, {}).setdefault(Fp8Shape.of(weight), weight)
    for device, weights in asked.items():
        trials = fp8_trials(weights, dtype)
        verdicts = tried(device, [[one] for one in trials], afresh=afresh)
        seconds: dict[Key, dict[str, float]] = {}
        for shape, weight in weights.items():
            for num in (*ROW_TILES, _MANY_ROWS):
                times = seconds.setdefault(key_of(num, weight), {})
                for one in _trials(shape, num, dtype):
                    if verdicts[one].is_right:
                        times[one.name] = verdicts[one].result
                    else:
                        found.pass_over(one.name, verdicts[one].reason)
        found.chosen |= {
            key: min(times, key=lambda name: times[name], default=BY_PIECES) for key, times in seconds.items()
        }
    CHOSEN.update(found.chosen)
    return found


def fp8_trials(shapes: Iterable[Fp8Shape], dtype: torch.dtype) -> list[Trial]:
    """All that `choose_fp8_products` wants to know of weights of `shapes`."""
    return [
        one for shape in dict.fromkeys(shapes) for num in (*ROW_TILES, _MANY_ROWS) for one in _trials(shape, num, dtype)
    ]


def _trials(shape: Fp8Shape, num: int, dtype: torch.dtype) -> list[Trial]:
    of = {"dtype": str(dtype).removeprefix("torch."), "num_rows": num, **asdict(shape)}
    names = candidates(shape.outputs, shape.inputs, (shape.block_rows, shape.block_columns), num)
    return [Trial.of(name, f"{__name__}:try_fp8_product", **of) for name in names]


@torch.no_grad()
def try_fp8_product(device: str, *, name: str, dtype: str, num_rows: int, **shape: Any) -> float:
    """Seconds that the product `name` takes for weights of `shape`; raises where it is not for them."""
    weights, generator = _weights(device, Fp8Shape(**shape)), torch.Generator().manual_seed(num_rows)
    rows = torch.randn(num_rows, shape["inputs"], generator=generator).to(device, getattr(torch, dtype))
    bias = torch.randn(shape["outputs"], generator=generator).to(device, rows.dtype)
    reason = _why_not(name, weights[0], bias, rows)
    if reason:
        raise TrialRefused(reason)
    return _on_card(partial(_run, name, weights, rows))


@lru_cache(maxsize=1)
def _weights(device: str, shape: Fp8Shape) -> list[Fp8Weight]:
    """With more bytes than a card's cache has, where so many weights have them."""
    num = min(_WEIGHTS, 1 + _CACHE_BYTES // (shape.outputs * shape.inputs))
    return [shape.random_weight(torch.device(device), seed) for seed in range(num)]


def _held(model: nn.Module) -> Iterator[Fp8Weight]:
    """Weights that are in memory; of a layer's experts the first."""
    for layer in fp8_linears(model):
        yield layer.held
    for module in model.modules():
        if isinstance(module, Fp8Experts) and module.down_proj.device.type != "meta":
            upper, down = module.held(0)
            yield from (*upper, down)


def _why_not(name: str, weight: Fp8Weight, bias: torch.Tensor, most: torch.Tensor) -> str:
    """Compared with the product in float32 of what it takes the rows for; also for an odd number, and with no bias."""
    for rows, added in ((most, bias), (most[: max(1, len(most) - 3)], None)):
        taken = rounded(rows, weight) if name == SCALED else rows.float()
        meant = by_pieces(taken, weight, None if added is None else added.float())
        said = PRODUCTS[name](rows, weight, added)
        off = float((said.float() - meant).abs().max() / meant.abs().max())
        if not off <= _TOLERANCE:
            shape = f"{weight.outputs} × {weight.inputs}, {len(rows)} rows"
            return f"it is wrong by {off:.2g} of the largest number ({shape})"
    return ""


def _run(name: str, weights: list[Fp8Weight], rows: torch.Tensor) -> None:
    for weight in islice(cycle(weights), _WEIGHTS):
        PRODUCTS[name](rows, weight, None)


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
