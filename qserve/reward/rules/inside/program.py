"""The program's side: runs it, then does what the tests ask of it. The program can change all of this."""

from __future__ import annotations

import builtins
import io
import operator
import os
import sys

from qserve.reward.rules.inside.kinds import BASES
from qserve.reward.rules.inside.peer import Peer
from qserve.reward.rules.inside.theirs import Theirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["main"]

_MOST_PRINTED = 1 << 20
_SYMBOLS = (
    "add sub mul matmul truediv floordiv mod lshift rshift and or xor iadd isub imul imatmul itruediv ifloordiv imod "
    "ilshift irshift iand ior ixor lt le gt ge eq ne neg pos invert getitem setitem delitem contains index"
)


class Program(Peer):
    """`names` are the program's globals."""

    def __init__(self, read_fd: int, write_fd: int, names: dict[str, Any]) -> None:
        super().__init__(read_fd, write_fd)
        self._ops = _operations(names)
        self._printed = io.StringIO()
        self._input = builtins.input

    def describe(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, type):
            if issubclass(value, BaseException):
                return ("exception", value.__name__, value.__bases__)
            return ("class", value.__name__)
        if type(value).__name__ == "coroutine":
            return ("coroutine",)
        base = next((base for base in BASES if issubclass(type(value), base)), None)  # whatever its __class__ says
        return ("object", base)

    def accept(self, number: int, about: tuple[Any, ...]) -> Any:
        return Theirs(self, number, *about)

    def number_of(self, value: Any) -> int | None:
        return Theirs.number_of(value) if type(value) is Theirs else None

    def perform(self, op: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self._ops[op](*args, **keywords)

    def description(self, error: BaseException) -> tuple[Any, ...]:
        args = error.args if all(type(arg) in (str, int, float, bool, bytes, tuple) for arg in error.args) else ()
        return (type(error), args, str(error), error)

    def error(self, description: tuple[Any, ...], op: str, args: tuple[Any, ...]) -> BaseException:
        name, args, text, _ = description
        cls: Any = getattr(builtins, name, None)
        if not isinstance(cls, type) or not issubclass(cls, Exception):
            cls, args = type(name, (Exception,), {}), (text,)
        error: BaseException = cls(*args)
        return error

    def sent_along(self) -> Any:
        said = self._printed.getvalue()
        self._printed.seek(0)
        self._printed.truncate()
        return said[:_MOST_PRINTED]

    def came_along(self, along: Any) -> None:
        if along is None:
            return
        text, ask = along
        if text is not None:
            sys.stdin = io.StringIO(text)
        builtins.input = self._input if ask is None else ask
        if sys.stdout is not self._printed:
            sys.stdout = self._printed


def _operations(names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    named = {name: getattr(operator, name, None) or getattr(operator, f"{name}_") for name in _SYMBOLS.split()}
    of_builtins = {
        one.__name__: one
        for one in (
            abs,
            bool,
            bytes,
            complex,
            delattr,
            divmod,
            float,
            format,
            getattr,
            hash,
            int,
            isinstance,
            issubclass,
            iter,
            len,
            next,
            object,
            pow,
            repr,
            reversed,
            round,
            setattr,
            str,
        )
    }
    return {
        **named,
        **of_builtins,
        "call": lambda target, /, *args, **keywords: target(*args, **keywords),
        "name": names.__getitem__,
        "plain": _plain,
        "run": _run,
        "copy": _copy("copy"),
        "deepcopy": _copy("deepcopy"),
    }


def _plain(value: Any) -> Any:
    """The value of an instance of a subclass of a builtin type, as that type has it."""
    base: Any = next(base for base in BASES if issubclass(type(value), base))
    if base is complex:
        return complex(value.real, value.imag)
    if base in (int, float):
        return base.__add__(value, base(0))
    if base in (str, bytes, bytearray):
        return base.__getitem__(value, slice(None))
    if base is dict:
        return dict(dict.items(value))
    return base(base.__iter__(value))


def _copy(how: str) -> Any:
    def function(value: Any) -> Any:
        import copy

        return getattr(copy, how)(value)

    return function


def _run(coroutine: Any) -> Any:
    import asyncio

    global _loop
    _loop = _loop or asyncio.new_event_loop()
    return _loop.run_until_complete(coroutine)


_loop: Any = None


def main(source: str, read_fd: int, write_fd: int) -> None:
    """Run the program; then, if it came to its end, what the tests ask."""
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    peer = Program(read_fd, write_fd, names)
    sys.stdout = io.StringIO()
    try:
        exec(compile(source, "response", "exec"), names)  # noqa: S102
    except BaseException:
        os._exit(1)
    peer.say_first(tuple(name for name in names if not name.startswith("__")))
    try:
        peer.serve()
    finally:
        os._exit(0)
