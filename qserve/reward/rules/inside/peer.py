"""One end of the pipe: asks the other side, and answers what it asks meanwhile."""

from __future__ import annotations

import os
from _thread import RLock

from qserve.reward.rules.inside.codec import MAX_BYTES, Codec, kind_of
from qserve.reward.rules.inside.kinds import CONTAINERS, parts_of, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

__all__ = ["Broken", "Peer"]

_MAX_DEPTH = 40
_ASK, _ANSWER = b"?", b"!"


class Broken(BaseException):
    """See `Peer.fail`."""


class Peer:
    """What the two sides have in common. A side says what it does for the other (`perform`), how it describes its own
    objects and takes the other's (see `Codec`), and how it describes and raises errors."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._depth = 0
        self._turn = RLock()
        self.codec = Codec(self.describe, self.accept, self.number_of)

    def ask(self, op: str, *args: Any, **keywords: Any) -> Any:
        """What the other side answers. Raises what it raised, or Broken."""
        shared: list[Any] = []
        with self._turn:
            self._send(_ASK, self.codec.write((op, args, tuple(keywords.items()), self.sent_along()), shared))
            kind, data = self._receive()
            while kind == _ASK:
                self._answer(data)
                kind, data = self._receive()
            went_well, result, changes, along = self._understood(data, shared)
            for number, parts in changes:
                replace(kind_of(type(shared[number])), shared[number], parts)
            self.came_along(along)
        if went_well:
            return result
        raise self.error(result, op, args)

    def say_first(self, value: Any) -> None:
        """Tell the other side something before it asks."""
        self._send(_ANSWER, self.codec.write(value, []))

    def first_message(self) -> Any:
        """What the other side tells first."""
        return self._understood(self._receive()[1], [])

    def serve(self) -> None:
        """Answer until the other side is gone."""
        while True:
            self._answer(self._receive()[1])

    def _answer(self, data: bytes) -> None:
        shared: list[Any] = []
        op, args, keywords, along = self._understood(data, shared)
        before = [parts_of(kind_of(type(one)), one) for one in shared]
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self.fail("program and tests call each other without end")
        try:
            self.came_along(along)
            result, went_well = self.perform(op, args, dict(keywords)), True
        except Exception as error:
            result, went_well = self.description(error), False
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            result, went_well = self.description(error), False
        finally:
            self._depth -= 1
        changes = [change for change in map(_change, range(len(shared)), shared, before) if change is not None]
        try:
            answer = self.codec.write((went_well, result, tuple(changes), self.sent_along()), shared)
        except Exception as error:
            answer = self.codec.write((False, self.description(error), (), None), [])
        self._send(_ANSWER, answer)

    def _understood(self, data: bytes, shared: list[Any]) -> Any:
        try:
            return self.codec.read(data, shared)
        except Exception as error:
            self.fail(repr(error))

    def _send(self, kind: bytes, data: bytes) -> None:
        left = memoryview(kind + len(data).to_bytes(4, "little") + data)
        try:
            while left:
                left = left[os.write(self._write_fd, left) :]
        except OSError as error:
            self.fail(repr(error))

    def _receive(self) -> tuple[bytes, bytes]:
        head = self._read(5)
        size = int.from_bytes(head[1:], "little")
        if head[:1] not in (_ASK, _ANSWER) or size > MAX_BYTES:
            self.fail("no message")
        return head[:1], self._read(size)

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            part = os.read(self._read_fd, min(size, 1 << 20))
            if not part:
                self.fail("the other side is gone")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def fail(self, why: str) -> NoReturn:
        """The other side is gone, or said what it can't mean: nothing goes on after it."""
        raise Broken(why)

    def describe(self, value: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def accept(self, number: int, about: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def number_of(self, value: Any) -> int | None:
        raise NotImplementedError

    def perform(self, op: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        raise NotImplementedError

    def description(self, error: BaseException) -> tuple[Any, ...]:
        """Of an error: its class or the name of a builtin one, its arguments, its text, and itself."""
        raise NotImplementedError

    def error(self, description: tuple[Any, ...], op: str, args: tuple[Any, ...]) -> BaseException:
        """What is raised here for an error of the other side's."""
        raise NotImplementedError

    def sent_along(self) -> Any:
        """What goes with each message: what was printed, or what there is to read."""
        return None

    def came_along(self, along: Any) -> None:
        """Takes it."""


def _change(number: int, container: Any, before: tuple[Any, ...]) -> tuple[int, tuple[Any, ...]] | None:
    kind = kind_of(type(container))
    assert kind in CONTAINERS
    after = parts_of(kind, container)
    if kind == "builtins.bytearray":
        is_same = after == before
    else:
        is_same = len(after) == len(before) and all(map(_is, after, before))
    return None if is_same else (number, after)


def _is(one: Any, other: Any) -> bool:
    return one is other
