"""What the program has in its hands in place of an object of the tests': a function, an iterator or an instance."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qserve.reward.rules.inside.peer import Peer

__all__ = ["Theirs"]


class Theirs:
    """Each use of it is asked of the tests' side, which allows little."""

    __slots__ = ("_name", "_number", "_peer")

    def __init__(self, peer: Peer, number: int, name: str) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_name", name)

    @staticmethod
    def number_of(one: Theirs) -> int:
        number: int = object.__getattribute__(one, "_number")
        return number

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._peer.ask("call", self, *args, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return self._name
        if name.startswith("_"):
            raise AttributeError(name)
        return self._peer.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("setattr", self, name, value)

    def __repr__(self) -> str:
        return f"<{self._name} of the tests>"

    def __hash__(self) -> int:
        return hash(self._number)

    def __eq__(self, other: Any) -> Any:
        return self is other or self._peer.ask("eq", self, other)


def _forward(op: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return self._peer.ask(op, self, *args)

    return method


for _op in ("iter", "next", "len", "bool", "str", "getitem", "setitem", "contains", "lt", "le", "gt", "ge"):
    setattr(Theirs, f"__{_op}__", _forward(_op))
