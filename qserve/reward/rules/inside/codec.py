"""Bytes of a message. Reading makes builtins only, whatever the bytes are, or raises an Exception."""

from __future__ import annotations

from qserve.reward.rules.inside.kinds import CONTAINERS, VALUES, made, parts_of, replace
from qserve.reward.rules.inside.known import name_of, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["MAX_BYTES", "Codec", "is_plain", "kind_of"]

MAX_BYTES = 1 << 24
"""Of one message."""
_SINGLES = {b"N": None, b"T": True, b"F": False, b"E": ..., b"I": NotImplemented}
_ALWAYS = {id(value): tag for tag, value in _SINGLES.items()}
_KINDS = sorted(CONTAINERS | set(VALUES))
_KIND_OF: dict[type, str] = {}
_NUMBER_OF_KIND = {name: number for number, name in enumerate(_KINDS)}


class Codec:
    """One side's. What is no data goes as a number: `given` are this side's own objects by it.

    `describe` tells of an own object what the other side must know; `accept` makes what stands for one of the other's,
    from its number and that; `number_of` is the other's number of what `accept` made, None for other objects.
    """

    def __init__(
        self,
        describe: Callable[[Any], tuple[Any, ...]],
        accept: Callable[[int, tuple[Any, ...]], Any],
        number_of: Callable[[Any], int | None],
    ) -> None:
        self.given: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._describe, self._accept, self._number_of = describe, accept, number_of

    def give(self, value: Any) -> int:
        """The number of an own object, always the same."""
        number = self._numbers.setdefault(id(value), len(self.given))
        if number == len(self.given):
            self.given.append(value)
        return number

    def write(self, value: Any, shared: list[Any]) -> bytes:
        """`shared` are the containers that both sides know in this exchange; those in `value` are added to it."""
        out = bytearray()
        self._write(value, out, shared, {id(one): number for number, one in enumerate(shared)})
        if len(out) > MAX_BYTES:
            raise ValueError(f"a message has {len(out)} bytes; at most {MAX_BYTES} go between program and tests")
        return bytes(out)

    def read(self, data: bytes, shared: list[Any]) -> Any:
        """What `write` was given. Raises an Exception for bytes that it can't have written."""
        value, end = self._read(data, 0, shared)
        if end != len(data):
            raise ValueError("bytes after the end of a message")
        return value

    def _write(self, value: Any, out: bytearray, shared: list[Any], numbers: dict[int, int]) -> None:
        cls = type(value)
        if id(value) in _ALWAYS:
            out += _ALWAYS[id(value)]
        elif cls is int:
            _sized(out, b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif cls is str:
            _sized(out, b"s", value.encode("utf-8", "surrogatepass"))
        elif cls is float:
            _sized(out, b"f", repr(value).encode())
        elif cls is bytes:
            _sized(out, b"b", value)
        elif id(value) in numbers:
            out += b"a" + numbers[id(value)].to_bytes(4, "little")
        else:
            self._write_more(value, cls, out, shared, numbers)

    def _write_more(self, value: Any, cls: type, out: bytearray, shared: list[Any], numbers: dict[int, int]) -> None:
        kind = kind_of(cls)
        if kind and not getattr(value, "tzinfo", None):
            if kind in CONTAINERS:
                numbers[id(value)] = len(shared)
                shared.append(value)
            parts = parts_of(kind, value)
            out += b"m" + bytes([_NUMBER_OF_KIND[kind]]) + len(parts).to_bytes(4, "little")
        elif (theirs := self._number_of(value)) is not None:
            out += b"y" + theirs.to_bytes(4, "little")
            return
        elif (known := name_of(value)) is not None:
            parts, out[len(out) :] = known, b"k"
        else:
            parts, out[len(out) :] = (self._describe(value),), b"h" + self.give(value).to_bytes(4, "little")
        for part in parts:
            self._write(part, out, shared, numbers)

    def _read(self, data: bytes, at: int, shared: list[Any]) -> tuple[Any, int]:
        tag, at = data[at : at + 1], at + 1
        if tag in _SINGLES:
            return _SINGLES[tag], at
        if tag == b"m":
            return self._read_parts(data, at, shared)
        if tag == b"k":
            module, at = self._read(data, at, shared)
            name, at = self._read(data, at, shared)
            return named(module, name), at
        number, at = int.from_bytes(data[at : at + 4], "little"), at + 4
        if tag == b"h":
            about, at = self._read(data, at, shared)
            return self._accept(number, about), at
        if tag in (b"a", b"y"):
            return (shared if tag == b"a" else self.given)[number], at
        if at + number > len(data):
            raise ValueError("a message that ends too early")
        return _READ[tag](data[at : at + number]), at + number

    def _read_parts(self, data: bytes, at: int, shared: list[Any]) -> tuple[Any, int]:
        kind, count, at = _KINDS[data[at]], int.from_bytes(data[at + 1 : at + 5], "little"), at + 5
        value = made(kind) if kind in CONTAINERS else None
        if kind in CONTAINERS:
            shared.append(value)
        parts = []
        for _ in range(count):
            part, at = self._read(data, at, shared)
            parts.append(part)
        return replace(kind, value, tuple(parts)), at


def is_plain(value: Any) -> bool:
    """Whether it goes as data."""
    return type(value) in (int, str, float, bytes) or id(value) in _ALWAYS or bool(kind_of(type(value)))


def kind_of(cls: type) -> str:
    """The name of the kind of data that exactly this class is; empty for any other."""
    if cls not in _KIND_OF:
        module, name = str(cls.__module__), str(cls.__qualname__)
        is_one = f"{module}.{name}" in _NUMBER_OF_KIND
        is_one = is_one and getattr(__import__(module, fromlist=["_"]), name, None) is cls
        _KIND_OF[cls] = f"{module}.{name}" if is_one else ""
    return _KIND_OF[cls]


def _sized(out: bytearray, tag: bytes, data: bytes) -> None:
    out += tag + len(data).to_bytes(4, "little") + data


_READ: dict[bytes, Callable[[bytes], Any]] = {
    b"i": lambda data: int.from_bytes(data, "little", signed=True),
    b"s": lambda data: data.decode("utf-8", "surrogatepass"),
    b"f": lambda data: float(data),
    b"b": bytes,
}
