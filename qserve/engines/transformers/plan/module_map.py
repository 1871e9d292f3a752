"""A device map and memory limits as users write them: read, checked, and applied to our modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qserve.engines.transformers.plan.device_map import DeviceBudget, Modules, PartialDeviceMap, Place
from qserve.errors import UsageError
from qserve.units import parse_bytes

__all__ = ["ModuleMap", "overdrawn", "parse_limits"]

_OFFLOADED = ("cpu", "disk")


@dataclass(frozen=True)
class ModuleMap:
    """Module names, or prefixes of them, to places. `source` is where it stands, for messages and commands."""

    source: str
    places: tuple[tuple[str, Place], ...]

    def __str__(self) -> str:
        return self.source

    @classmethod
    def parse(cls, data: Any, source: str) -> ModuleMap:
        """accelerate's map as it comes out of JSON or YAML. Raises UsageError for what is no place."""
        if not isinstance(data, Mapping) or not data:
            raise UsageError(
                f"--device-map {source}: is not a mapping of module names to devices; "
                'write for example {"model.embed_tokens": 0, "model.layers": 0, "model.norm": 0, "lm_head": 0}'
            )
        return cls(
            source, tuple((str(name), _place(value, f"--device-map {source}: {name}")) for name, value in data.items())
        )

    def placed(
        self, modules: Modules, computing: list[Place], tied: bool, *, can_stream: bool = False
    ) -> PartialDeviceMap:
        """Every module where the map puts it. `computing` are the places that compute: cards, or the CPU alone.

        Raises UsageError that names what is unknown, missing, split, or put where it can't be.
        """
        self._check_names(modules)
        places = {module.name: self._place_of(module.name) for module in modules.all}
        self._check_places(modules, places, computing, tied)
        order = [*computing, *(place for place in _OFFLOADED if place not in computing)]
        held = tuple((place, tuple(m for m in modules.all if places[m.name] == place)) for place in order)
        return PartialDeviceMap(held, next(place for place, inside in held if inside), can_stream)

    def _place_of(self, name: str) -> Place:
        """That of the longest key that is the module or holds it."""
        found = [(key, place) for key, place in self.places if _holds(key, name)]
        return max(found, key=lambda pair: len(pair[0]))[1]

    def _check_names(self, modules: Modules) -> None:
        names = [module.name for module in modules.all]
        for key, _ in self.places:
            if any(_holds(key, name) for name in names):
                continue
            whole = next((name for name in names if _holds(name, key)), None)
            if whole is not None:
                raise UsageError(
                    f"--device-map {self.source}: {key} is a part of {whole}, which is placed as one piece, since its "
                    f"parts add to the same hidden states; place {whole}"
                )
            raise UsageError(
                f"--device-map {self.source}: the model has no module {key}; it has {_some(names)}, and groups of them "
                "like model.layers"
            )
        missing = [name for name in names if not any(_holds(key, name) for key, _ in self.places)]
        if missing:
            raise UsageError(
                f"--device-map {self.source}: places nothing for {_some(missing)}; every module needs a place, and an "
                'entry "" takes the rest'
            )

    def _check_places(self, modules: Modules, places: dict[str, Place], computing: list[Place], tied: bool) -> None:
        where = f"--device-map {self.source}"
        for key, place in self.places:
            if place not in (*computing, *_OFFLOADED):
                have = ", ".join(map(str, computing)) if computing != ["cpu"] else "no card"
                raise UsageError(f"{where}: {key} is on card {place}, but this machine has {have}")
        used = set(places.values())
        if not used & set(computing):
            raise UsageError(f"{where}: puts nothing on {_some(computing)}; to run on the CPU alone, write --gpu none")
        for module in (*modules.first, *modules.last):
            if places[module.name] not in computing and module.weights_bytes:
                raise UsageError(
                    f"{where}: {module.name} is offloaded to {places[module.name]}, and every step would copy it "
                    f"whole; only layers can be offloaded, so put it on {_some(computing)}"
                )
        embedding, head = places["model.embed_tokens"], places["lm_head"]
        if tied and embedding != head:
            raise UsageError(
                f"{where}: lm_head is on {head} and model.embed_tokens on {embedding}, but they share one weight "
                "(tie_word_embeddings); put both on one device"
            )


def overdrawn(placed: PartialDeviceMap, bins: Iterable[DeviceBudget]) -> dict[Place, int]:
    """Bytes that each place lacks; empty where everything fits."""
    lacks = {place.name: placed.needs_on(place.name) - place.capacity_bytes for place in bins}
    held = set(placed.names)
    return {name: lack for name, lack in lacks.items() if lack > 0 and name in held}


def parse_limits(text: str) -> dict[Place, int]:
    """Bytes by place of --max-memory '0=20GiB,1=20GiB,cpu=64GiB'. Raises UsageError."""
    limits: dict[Place, int] = {}
    for part in text.split(","):
        name, separator, size = part.partition("=")
        if not separator:
            raise UsageError(f"--max-memory {text!r}: can't read {part!r}; write for example 0=20GiB,1=20GiB,cpu=64GiB")
        place = _place(name.strip(), f"--max-memory {text!r}")
        if place in limits:
            raise UsageError(f"--max-memory {text!r}: names {place} twice")
        limits[place] = parse_bytes(size)
    return limits


def _place(value: Any, where: str) -> Place:
    """0, "0", "cuda" and "cuda:0" are the first card; "cpu" and "disk" are themselves."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value in _OFFLOADED:
        return str(value)
    found = re.fullmatch(r"(?:cuda:?)?(\d*)", str(value)) if isinstance(value, str) and value else None
    if found is None:
        raise UsageError(f"{where}: {value!r} is not a device; a device is a card's number (0, 1, …), cpu or disk")
    return int(found[1] or 0)


def _holds(key: str, name: str) -> bool:
    """Whether `key` is the module `name`, or holds it."""
    return key in ("", name) or name.startswith(f"{key}.")


def _some(names: Iterable[Any]) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed) if len(listed) <= 4 else f"{', '.join(listed[:3])}, … ({len(listed)} in all)"
