"""The placement of layers as text: two lines per place, with a bar of its layers, its memory, and their names."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = ["layout_rows"]

_WIDTH = 28
_LAYER = "model.layers."
_NAMES = {"model.embed_tokens": "embeddings", "lm_head": "head", "model.visual": "vision encoder"}


def layout_rows(plan: Plan) -> list[str]:
    """Two lines per place that holds weights; none for a plan that places no modules, or all in one place.

    The bar is the model from its first layer to its last; what lies at the place is filled.
    """
    placed = plan.placement.device_map
    if not isinstance(placed, dict):
        return []
    places = list(dict.fromkeys(sorted(placed.values(), key=_order)))
    layers = [place for name, place in placed.items() if name.startswith(_LAYER)]
    width = max(len(_title(place)) for place in places)
    return [
        f"{_title(place):{width}}  {_bar(layers, place)}  {_bytes(plan, place)}\n{' ' * width}  {_held(placed, place)}"
        for place in places
    ]


def _order(place: int | str) -> tuple[int, int]:
    """Cards by number, then RAM, then disk."""
    return (0, place) if isinstance(place, int) else (1, 0) if place == "cpu" else (2, 0)


def _title(place: int | str) -> str:
    return f"card {place}" if isinstance(place, int) else {"cpu": "RAM", "disk": "disk"}[place]


def _bar(layers: list[int | str], place: int | str) -> str:
    """Each cell stands for the layers that begin in it, at least for one."""
    count = len(layers)
    width = min(_WIDTH, count)
    cells = [
        layers[cell * count // width : max(1 + cell * count // width, (cell + 1) * count // width)]
        for cell in range(width)
    ]
    return "".join("█" if place in cell else "·" for cell in cells)


def _held(placed: dict[str, int | str], place: int | str) -> str:
    here = [name for name, where in placed.items() if where == place]
    numbers = [int(name.removeprefix(_LAYER)) for name in here if name.startswith(_LAYER)]
    others = [_NAMES[name] for name in here if name in _NAMES]
    named = ([f"layers {_ranges(numbers)}"] if numbers else []) + others
    return ", ".join(named) or "norms"


def _ranges(numbers: Iterable[int]) -> str:
    """0–27, 40: consecutive numbers told by their ends."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _bytes(plan: Plan, place: int | str) -> str:
    offloaded = plan.placement.offloaded_bytes.get(str(place))
    if offloaded is not None:
        main = min((where for where in _places(plan) if isinstance(where, int)), default=None)
        computes = f"card {main}" if main is not None else "the CPU"
        return f"{format_bytes(offloaded)}, sent to {computes} for every step"
    device = plan.devices[place if isinstance(place, int) else 0]
    return f"{format_bytes(device.weights_bytes)}, and {format_bytes(device.kv_cache_bytes)} of KV cache"


def _places(plan: Plan) -> list[int | str]:
    placed = plan.placement.device_map
    return list(placed.values()) if isinstance(placed, dict) else []
