"""The tests' side: runs them against a program that is elsewhere, and alone says whether they passed."""

from __future__ import annotations

import builtins
import io
import os
import sys

from qserve.reward.rules.inside.errors import FromProgram, exception_class, raised
from qserve.reward.rules.inside.known import MODULES
from qserve.reward.rules.inside.peer import Peer
from qserve.reward.rules.inside.proxy import Remote, coroutine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, NoReturn

__all__ = ["PASSED", "Tester", "main"]

PASSED = b"passed"
_ITERATOR_OPS = ("next", "iter", "len", "bool", "lt", "le", "gt", "ge", "eq", "getitem", "setitem", "contains", "str")


class Tester(Peer):
    """What the program may do with objects of the tests that it was handed: call a function, step an iterator, and use
    an instance of a class that the tests define, without names that begin with an underscore."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        super().__init__(read_fd, write_fd)
        self._made: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._stdin, self._input = sys.stdin, builtins.input

    def fail(self, why: str) -> NoReturn:
        """At once, and not by an exception that the tests may catch."""
        os._exit(1)

    def describe(self, value: Any) -> tuple[Any, ...]:
        return (str(getattr(value, "__name__", type(value).__name__)),)

    def accept(self, number: int, about: tuple[Any, ...]) -> Any:
        if number not in self._made:
            what, *more = about
            made: Any = Remote(self, number, more[0] if what == "object" else None)
            if what == "exception":
                made = exception_class(*more)
            self._made[number] = made
            self._numbers[id(made)] = number
        made = self._made[number]
        return coroutine(made) if about[0] == "coroutine" else made

    def number_of(self, value: Any) -> int | None:
        return self._numbers.get(id(value))

    def perform(self, op: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        target, *rest = args
        if not any(target is one for one in self.codec.given):
            raise TypeError("this is not an object of the tests")
        if op == "call":
            return target(*rest, **keywords)
        is_instance = type(target).__module__ == "__main__"
        if op in ("getattr", "setattr") and is_instance and not str(rest[0]).startswith("_"):
            return getattr(builtins, op)(target, *rest)
        if not is_instance and op in ("eq", "bool"):
            return target is rest[0] if rest else bool(target)
        if op in ("iter", "next") or (op in _ITERATOR_OPS and is_instance):
            function: Any = getattr(builtins, op, None) or _operator(op)
            return function(target, *rest)
        raise TypeError(f"{op} of an object of the tests")

    def description(self, error: BaseException) -> tuple[Any, ...]:
        args = error.args if all(type(arg) in (str, int, float, bool, bytes) for arg in error.args) else ()
        return (type(error).__name__, args, str(error), None)

    def error(self, description: tuple[Any, ...], op: str, args: tuple[Any, ...]) -> BaseException:
        cls, arguments, text, origin = description
        return raised(cls, arguments, text, origin, of_iterator=op == "next")

    def sent_along(self) -> Any:
        text = None
        if sys.stdin is not self._stdin and isinstance(sys.stdin, io.StringIO):
            self._stdin, text = sys.stdin, sys.stdin.read()
        return (text, builtins.input if builtins.input is not self._input else None)

    def came_along(self, along: Any) -> None:
        if isinstance(along, str) and along:
            sys.stdout.write(along)


def _operator(op: str) -> Any:
    import operator

    return getattr(operator, op)


class _Names(dict):  # type: ignore[type-arg]
    """The tests' globals; what they do not define is the program's, except what `builtins` and modules mean."""

    def __init__(self, peer: Tester, names: set[str]) -> None:
        super().__init__(__name__="__main__", __builtins__=builtins)
        self._peer, self._names = peer, names

    def __missing__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return __import__(name) if name in MODULES else self._peer.ask("name", name)


class _Main(type(sys)):  # type: ignore[misc]
    """`__main__` as unittest looks for tests in it."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__("__main__")
        self.__dict__["_names"] = names

    def __getattr__(self, name: str) -> Any:
        try:
            return self._names[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self) -> list[str]:
        return list(self._names)


def _names_in(code: CodeType) -> set[str]:
    inner = [one for one in code.co_consts if isinstance(one, type(code))]
    return set(code.co_names).union(*map(_names_in, inner))


def _theirs(defined: set[str], used: set[str]) -> set[str]:
    """The program's names that the tests mean. One that is a builtin's as well is meant if it is the only one: a
    function under test may be called `sum`, but `abs` around its answer is Python's."""
    meant = {name for name in defined & used if not name.startswith("__")}
    own = {name for name in meant if not hasattr(builtins, name)}
    return own or (meant if len(meant) == 1 else set())


def main(source: str, read_fd: int, write_fd: int, verdict_fd: int) -> None:
    """Wait until the program has run to its end, run the tests, and write the verdict if they passed."""
    try:
        peer = Tester(read_fd, write_fd)
        defined = peer.first_message()
        code = compile(source, "tests", "exec")
        names = _Names(peer, _theirs({str(name) for name in defined}, _names_in(code)))
        sys.modules["__main__"] = _Main(names)
        exec(code, names)  # noqa: S102
    except SystemExit as error:
        if isinstance(error, FromProgram) or error.code not in (None, 0):
            os._exit(1)
    except BaseException:
        os._exit(1)
    os.write(verdict_fd, PASSED)
    os._exit(0)
