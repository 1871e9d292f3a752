"""What another worker needs to continue an answer: its id, when it began, its seed, and its tokens in their order.

All else of an answer follows from these: a seed's numbers by position, penalties, a grammar's state, stop strings,
thoughts and calls of tools, ids of calls, counts of usage. So an answer that is continued is generated once more from
its beginning, by the same steps with the same tokens in place of draws, and the gateway passes on what its client has
not seen. Reading the tokens as a prompt would take less time, and round keys and values otherwise than steps of
decoding do: what follows would be another answer now and then.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import msgspec

from qserve.engines.transformers.worker.engine import Generation, Piece
from qserve.wire.errors import ApiError

__all__ = ["Journal"]

_LINE = b":j"


class _Head(msgspec.Struct, frozen=True):
    """The first line."""

    id: str
    created: int
    seed: int


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """A token of the choice `index`. Of its prompt, `num_cached` tokens were in the cache; left out where none were."""

    index: int
    token_id: int
    num_cached: int = 0


_read_head = msgspec.json.Decoder(_Head).decode
_read_entries = msgspec.json.Decoder(list[Entry]).decode


@dataclass
class Journal:
    """Of one answer.

    Attributes:
        answer_id: 32 hexadecimal digits.
        created: seconds since 1970.
        seed: of the first choice where the request has none; each further choice has the next one.
        replayed: tokens of an earlier worker, of all choices in the order in which they came.
        has_begun: whether its first line is written.
    """

    answer_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))
    seed: int = field(default_factory=lambda: secrets.randbits(48))
    replayed: Sequence[Entry] = ()
    has_begun: bool = False

    def __post_init__(self) -> None:
        self._unwritten: list[tuple[int, ...]] = []

    @classmethod
    def read(cls, lines: bytes) -> Journal:
        """What a worker wrote. Raises ApiError 400 for anything else."""
        try:
            head, *others = [line.removeprefix(_LINE) for line in lines.splitlines()]
            begun = _read_head(head)
            entries = [entry for line in others for entry in _read_entries(line)]
        except (ValueError, msgspec.DecodeError) as error:
            raise ApiError(400, f"this is no journal of an answer: {error}", "invalid_journal") from None
        return cls(begun.id, begun.created, begun.seed, entries, has_begun=True)

    def of(self, generations: Sequence[Generation]) -> list[Generation]:
        """With a seed that another worker can have, and the tokens of each that are known."""
        return [self._bound(index, one) for index, one in enumerate(generations)]

    def note(self, index: int, piece: Piece) -> None:
        """The token of `piece` was drawn here."""
        (token_id,), num_cached = piece.token_ids, piece.num_cached_tokens
        self._unwritten.append((index, token_id, num_cached) if num_cached else (index, token_id))

    async def before(self, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """`events`, each after the lines of the tokens that it is made of."""
        async with aclosing(events) as closing:
            async for event in closing:
                yield self._lines() + event

    def _bound(self, index: int, one: Generation) -> Generation:
        own = [entry for entry in self.replayed if entry.index == index]
        params = one.params if one.params.seed is not None else replace(one.params, seed=self.seed + index)
        num_cached = own[0].num_cached if own else None
        return replace(one, params=params, replayed=[entry.token_id for entry in own], num_cached_tokens=num_cached)

    def _lines(self) -> bytes:
        lines = b""
        if not self.has_begun:
            self.has_begun = True
            lines = _line(_Head(self.answer_id, self.created, self.seed))
        if self._unwritten:
            lines += _line(self._unwritten)
            self._unwritten = []
        return lines


def _line(content: object) -> bytes:
    return _LINE + msgspec.json.encode(content) + b"\n"
