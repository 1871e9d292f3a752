"""Layers over cards, RAM and disk: the `device_map` that accelerate dispatches by, from our own estimate.

Each place says what it can take after activations and runtime; each module brings its weights and the cache that lies
with it. So nothing is placed where the cache or a step would overflow it later, the last card not excepted.

What is offloaded computes on the first card all the same: accelerate brings one piece of it there at a time, and its
cache must be there at all times. Both are set aside before anything is placed.
Source: accelerate 1.15, big_modeling.py: dispatch_model (main_device) and hooks.py: attach_align_device_hook. Layers of
a dense model in RAM beside one card are streamed: two buffers of a whole layer are set aside (core/offload.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from qserve.core.offload import NUM_BUFFERS

__all__ = ["DeviceBudget", "Mode", "Module", "Modules", "PartialDeviceMap", "Place", "place_modules"]

Mode = Literal["auto", "balanced", "sequential"]
Place = int | str
"""A card's index, "cpu" or "disk"."""


@dataclass(frozen=True)
class Module:
    """One indivisible piece: its name, weights, and the KV cache that lies with it.

    `offloaded_bytes` are its weights in RAM or on disk beside a card, where bitsandbytes does not quantize;
    `largest_bytes` the part of them that is on the card at a time.
    """

    name: str
    weights_bytes: int
    kv_cache_bytes: int = 0
    offloaded_bytes: int = 0
    largest_bytes: int = 0


@dataclass(frozen=True)
class Modules:
    """All modules of a model. Only layers are offloaded: every step would copy a whole embedding or head."""

    first: tuple[Module, ...]
    layers: tuple[Module, ...]
    last: tuple[Module, ...]

    @property
    def all(self) -> tuple[Module, ...]:
        """In the order in which a step runs through them."""
        return (*self.first, *self.layers, *self.last)


@dataclass(frozen=True)
class DeviceBudget:
    """A place: a card's index, "cpu" or "disk", and the bytes it may take."""

    name: Place
    capacity_bytes: int


@dataclass(frozen=True)
class PartialDeviceMap:
    """Which modules lie where. `main` is the device where offloaded ones compute.

    `can_stream`: layers in RAM beside one card are copied whole, one ahead, where they would be module by module.
    """

    places: tuple[tuple[Place, tuple[Module, ...]], ...]
    main: Place
    can_stream: bool = False

    @property
    def names(self) -> list[Place]:
        """Places that hold anything, in order."""
        return [name for name, modules in self.places if modules]

    @property
    def device_map(self) -> dict[str, Place]:
        """Module to place, as accelerate writes it."""
        return {module.name: name for name, modules in self.places for module in modules}

    @property
    def offloaded(self) -> tuple[Module, ...]:
        return tuple(module for name, held in self.places if self.is_offload(name) for module in held)

    def is_offload(self, name: Place) -> bool:
        """Whether what lies at `name` is brought elsewhere to compute."""
        return name == "disk" or (name == "cpu" and self.main != "cpu")

    def weights_on(self, name: Place) -> int:
        held = next((modules for place, modules in self.places if place == name), ())
        return sum(module.offloaded_bytes if self.is_offload(name) else module.weights_bytes for module in held)

    def cache_on(self, name: Place) -> int:
        """The cache of what lies there; on the main device that of offloaded layers as well."""
        if self.is_offload(name):
            return 0
        held = next((modules for place, modules in self.places if place == name), ())
        guests = self.offloaded if name == self.main else ()
        return sum(module.kv_cache_bytes for module in (*held, *guests))

    @property
    def is_streamed(self) -> bool:
        """Whether offloaded layers have buffers on the card, and the next one comes while one computes."""
        return self.can_stream and self.main != "cpu" and set(self.names) == {self.main, "cpu"}

    def buffers_on(self, name: Place) -> int:
        """Bytes that streamed layers take of `name` for good."""
        held = self.offloaded if self.is_streamed and name == self.main else ()
        return min(NUM_BUFFERS, len(held)) * max((module.offloaded_bytes for module in held), default=0)

    def passing_through(self, name: Place) -> int:
        """Bytes of offloaded weights that come to `name` and go again."""
        if name != self.main or self.is_streamed:
            return 0
        return max((module.largest_bytes for module in self.offloaded), default=0)

    def needs_on(self, name: Place) -> int:
        """Everything of the model that `name` must hold at once."""
        return self.weights_on(name) + self.cache_on(name) + self.buffers_on(name) + self.passing_through(name)


def place_modules(
    modules: Modules,
    cards: list[DeviceBudget],
    overflow: list[DeviceBudget],
    mode: Mode = "auto",
    *,
    can_stream: bool = False,
) -> PartialDeviceMap | None:
    """Modules in order over `cards` (or the CPU, where it computes), the last layers into `overflow`; None: no fit.

    `sequential` fills each card before the next. `balanced` fills all to the same share of what they can take.
    `auto` takes one card where one suffices, else it balances. Where layers are offloaded, all cards are full.
    """
    usable = [card for card in cards if card.capacity_bytes > 0]
    if not usable:
        return None
    for kept in _layers_to_keep(modules, usable, overflow):
        placed = _place_on_cards(modules, kept, usable, mode, can_stream=can_stream and len(usable) == 1)
        rest = _fill(modules.layers[kept:], overflow, offloaded=True) if placed is not None else None
        if placed is not None and rest is not None:
            main = next(name for name, held in placed if held)
            if kept == len(modules.layers) or main == usable[0].name:
                return PartialDeviceMap((*placed, *rest), main, can_stream)
    # Too small a first card holds nothing; then the next one is where offloaded layers compute.
    return place_modules(modules, usable[1:], overflow, mode, can_stream=can_stream) if overflow else None


_Filled = tuple[tuple[Place, tuple[Module, ...]], ...]


def _layers_to_keep(modules: Modules, cards: list[DeviceBudget], overflow: list[DeviceBudget]) -> Iterator[int]:
    """How many layers may stay on the cards, most first; without a place to offload to, all or nothing."""
    count = len(modules.layers)
    yield count
    if not overflow:
        return
    room = sum(card.capacity_bytes for card in cards)
    cache = sum(module.kv_cache_bytes for module in modules.all)
    room -= cache + sum(module.weights_bytes for module in (*modules.first, *modules.last))
    fit, used = 0, 0
    while fit < count and used + modules.layers[fit].weights_bytes <= room:
        used += modules.layers[fit].weights_bytes
        fit += 1
    yield from range(min(fit, count - 1), -1, -1)


def _place_on_cards(
    modules: Modules, kept: int, cards: list[DeviceBudget], mode: Mode, *, can_stream: bool
) -> _Filled | None:
    moved = modules.layers[kept:]
    inside = (*modules.first, *modules.layers[:kept], *modules.last)
    if moved:
        passing = max(module.largest_bytes for module in moved)
        if can_stream:
            passing = min(NUM_BUFFERS, len(moved)) * max(module.offloaded_bytes for module in moved)
        set_aside = sum(module.kv_cache_bytes for module in moved) + passing
        cards = [replace(cards[0], capacity_bytes=cards[0].capacity_bytes - set_aside), *cards[1:]]
        return _fill(inside, cards)
    if mode == "sequential":
        return _fill(inside, cards)
    if mode == "auto":
        alone = next((found for card in cards if (found := _fill(inside, [card])) is not None), None)
        if alone is not None:
            return alone
    return _balance(inside, cards)


def _balance(modules: tuple[Module, ...], cards: list[DeviceBudget]) -> _Filled | None:
    """The least share of every card that holds all modules in order, to a thousandth."""
    best, low, high = _fill(modules, cards), 0, 1000
    while best is not None and high - low > 1:
        share = (low + high) // 2
        tried = _fill(modules, [replace(card, capacity_bytes=card.capacity_bytes * share // 1000) for card in cards])
        if tried is None:
            low = share
        else:
            best, high = tried, share
    return best


def _fill(modules: tuple[Module, ...], bins: list[DeviceBudget], offloaded: bool = False) -> _Filled | None:
    """Modules in order into bins in order; None when they don't fit.

    A bin that is left is not returned to: activations move forward only once per bin.
    """
    filled: list[list[Module]] = [[] for _ in bins]
    index, used = 0, 0
    for module in modules:
        need = module.offloaded_bytes if offloaded else module.weights_bytes + module.kv_cache_bytes
        while index < len(bins) and used + need > bins[index].capacity_bytes:
            index, used = index + 1, 0
        if index == len(bins):
            return None
        filled[index].append(module)
        used += need
    return tuple((place.name, tuple(held)) for place, held in zip(bins, filled, strict=True))
