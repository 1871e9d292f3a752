"""What a test has in its hands in place of an object of the program's.

Calls, attributes and operators go to the program, and plain data comes back. What the program must not do is judge: an
object of its own is never equal to, less than or more than plain data by its own word, and arithmetic of it with plain
data is never plain data (`abs(answer - 2.5) < 1e-6` would be true of an object whose difference to everything is 0).
An instance of a subclass of a builtin type is compared by that type's value, here. Two objects of the program are
compared by the program, but not by an `__eq__` that finds them equal to anything.
"""

from __future__ import annotations

import operator

from qserve.reward.rules.inside.codec import is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qserve.reward.rules.inside.peer import Peer

__all__ = ["Remote", "coroutine"]

_ARITHMETIC = "add sub mul matmul truediv floordiv mod divmod lshift rshift and or xor pow"
_IN_PLACE = "iadd isub imul imatmul itruediv ifloordiv imod ilshift irshift iand ior ixor"
_OTHERS = "neg pos invert abs round int float complex index bytes len iter next reversed hash getitem setitem delitem"
_MISSING = object()


class Remote:
    """`number` is the program's for the object; `base` the builtin type whose value it has, if any."""

    def __init__(self, peer: Peer, number: int, base: type | None) -> None:
        self.__dict__.update(_remote_peer=peer, _remote_number=number, _remote_base=base)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        found = self._remote_base or self._remote_peer.ask("getattr", self, "__class__")
        return Remote if self._remote_base is None and isinstance(found, type) else found

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._remote_peer.ask("call", self, *args, **keywords)

    def __getattr__(self, name: str) -> Any:
        return self._remote_peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._remote_peer.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._remote_peer.ask("delattr", self, name)

    def __instancecheck__(self, other: Any) -> bool:
        return type(other) is Remote and self._remote_peer.ask("isinstance", other, self) is True

    def __subclasscheck__(self, other: Any) -> bool:
        return type(other) is Remote and self._remote_peer.ask("issubclass", other, self) is True

    def __mro_entries__(self, bases: Any) -> Any:
        raise TypeError("tests can't derive from a class of the program: it is in another process")

    def __copy__(self) -> Any:
        return self._remote_peer.ask("copy", self)

    def __deepcopy__(self, copied: Any) -> Any:
        return self._remote_peer.ask("deepcopy", self)

    def __eq__(self, other: Any) -> Any:
        if type(other) is Remote:
            return self is other or _is_really(self, other)
        if self._remote_base is not None:
            return _value(self) == other
        return False if is_plain(other) else NotImplemented

    def __ne__(self, other: Any) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __contains__(self, item: Any) -> bool:
        if self._remote_base is not None:
            return item in _value(self)
        try:
            return any(one is item or one == item for one in iter(self))
        except TypeError:
            contains = self._remote_peer.ask("contains", self, item) is True
        return contains and self._remote_peer.ask("contains", self, self._remote_peer.ask("object")) is not True

    def __bool__(self) -> bool:
        return self._remote_peer.ask("bool", self) is True

    def __str__(self) -> str:
        return str(self._remote_peer.ask("str", self))

    def __repr__(self) -> str:
        return str(self._remote_peer.ask("repr", self))

    def __format__(self, how: str) -> str:
        return str(self._remote_peer.ask("format", self, how))

    def __enter__(self) -> Any:
        return self._remote_peer.ask("getattr", self, "__enter__")()

    def __exit__(self, cls: Any, error: Any, traceback: Any) -> Any:
        return self._remote_peer.ask("getattr", self, "__exit__")(cls, error and str(error), None) is True


def _value(one: Remote) -> Any:
    return one._remote_peer.ask("plain", one)


def _is_really(one: Remote, other: Remote) -> bool:
    peer = one._remote_peer
    if peer.ask("eq", one, other) is not True:
        return False
    return all(peer.ask("eq", side, peer.ask("object")) is not True for side in (one, other))


def _compared(op: str) -> Any:
    def method(self: Remote, other: Any) -> Any:
        if type(other) is Remote:
            return self._remote_peer.ask(op, self, other)
        return NotImplemented if self._remote_base is None else getattr(operator, op)(_value(self), other)

    return method


def _computed(op: str, *, reflected: bool = False) -> Any:
    def method(self: Remote, other: Any) -> Any:
        args = (other, self) if reflected else (self, other)
        if type(other) is not Remote and self._remote_base is not None:
            result = _here(op, *(_value(self) if one is self else one for one in args))
            if result is not _MISSING:
                return result
        result = self._remote_peer.ask(op, *args)
        if type(other) is not Remote and type(result) is not Remote:
            raise TypeError(f"{op} of an object of the program and plain data is plain data, which can't be checked")
        return result

    return method


def _here(op: str, one: Any, other: Any) -> Any:
    functions: dict[str, Any] = {"divmod": divmod, "pow": pow, "and": operator.and_, "or": operator.or_}
    try:
        return (functions.get(op) or getattr(operator, op))(one, other)
    except TypeError:
        return _MISSING


def _forwarded(op: str) -> Any:
    def method(self: Remote, *args: Any) -> Any:
        return self._remote_peer.ask(op, self, *args)

    return method


for _op in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_op}__", _compared(_op))
for _op in f"{_ARITHMETIC} {_IN_PLACE}".split():
    setattr(Remote, f"__{_op}__", _computed(_op))
for _op in _ARITHMETIC.split():
    setattr(Remote, f"__r{_op}__", _computed(_op, reflected=True))
for _op in _OTHERS.split():
    setattr(Remote, f"__{_op}__", _forwarded(_op))


async def coroutine(one: Remote) -> Any:
    """Awaiting it runs the program's coroutine to its end."""
    return one._remote_peer.ask("run", one)
