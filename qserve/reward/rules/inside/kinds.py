"""Values that go as data: their names, the parts that make them, and how they are made of them again.

Only of exactly these types: an instance of a subclass stays where it is, so that its methods judge nothing elsewhere.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["BASES", "CONTAINERS", "VALUES", "made", "parts_of", "replace"]

CONTAINERS = {
    "builtins.list",
    "builtins.dict",
    "builtins.set",
    "builtins.bytearray",
    "collections.deque",
    "collections.OrderedDict",
    "collections.Counter",
    "collections.defaultdict",
}
"""Can be changed: a change that a call makes to one in its arguments is made in the caller's as well."""
VALUES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "builtins.tuple": tuple,
    "builtins.frozenset": tuple,
    "builtins.complex": lambda value: (value.real, value.imag),
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "builtins.slice": lambda value: (value.start, value.stop, value.step),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "decimal.Decimal": lambda value: (str(value),),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.time": lambda value: (value.hour, value.minute, value.second, value.microsecond),
    "datetime.datetime": lambda value: (*value.timetuple()[:6], value.microsecond),
}
BASES = (int, float, str, bytes, list, tuple, dict, set, frozenset, bytearray, complex)
"""Of an instance of a subclass of these the plain value can be asked for."""


def parts_of(kind: str, value: Any) -> tuple[Any, ...]:
    """What `made` makes an equal value of."""
    if kind in VALUES:
        return VALUES[kind](value)
    if kind == "collections.deque":
        return (value.maxlen, *value)
    if kind == "collections.defaultdict":
        return (value.default_factory, *(part for item in value.items() for part in item))
    if isinstance(value, dict):
        return tuple(part for item in value.items() for part in item)
    return (bytes(value),) if kind == "builtins.bytearray" else tuple(value)


def made(kind: str) -> Any:
    """An empty container of this kind."""
    return _class_of(kind)()


def replace(kind: str, value: Any, parts: tuple[Any, ...]) -> Any:
    """Give a container these parts in place of its own; or make a value of them."""
    if kind in VALUES:
        return parts if kind == "builtins.tuple" else _class_of(kind)(*_arguments(kind, parts))
    if kind == "collections.deque":
        if value.maxlen != parts[0]:
            value.__init__((), parts[0])
        parts = parts[1:]
    elif kind == "collections.defaultdict":
        value.default_factory, parts = parts[0], parts[1:]
    value.clear()
    if isinstance(value, dict):
        for key, item in zip(parts[::2], parts[1::2], strict=True):
            value[key] = item
    elif kind == "builtins.set":
        value.update(parts)
    else:
        value.extend(parts[0] if kind == "builtins.bytearray" else parts)
    return value


def _arguments(kind: str, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return (parts,) if kind == "builtins.frozenset" else parts


def _class_of(kind: str) -> Any:
    module, _, name = kind.rpartition(".")
    return getattr(__import__(module, fromlist=["_"]), name)
