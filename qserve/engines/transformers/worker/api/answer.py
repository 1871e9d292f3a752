"""What the two completions endpoints share: an answer in the making, whole or as events."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from qserve.engines.transformers.worker.api.asker import Asker
from qserve.engines.transformers.worker.engine import Engine, Generation, Piece, merged
from qserve.engines.transformers.worker.prompts.read_body import AnswerFields
from qserve.wire.sse import DONE, event

__all__ = ["Answer", "encoded"]

_NO_CHOICES = b'"choices":[]'


class Answer(ABC):
    """One request being answered. Building it refuses what can't be answered; nothing runs before it is read."""

    _chunk_object: str

    def __init__(self, engine: Engine, request: AnswerFields, id_prefix: str, asker: Asker) -> None:
        self._engine = engine
        self._asker, self._cache_salt, self._n = asker, asker.salt(request.cache_salt), request.n
        self._head: dict[str, Any] = {
            "id": f"{id_prefix}-{asker.journal.answer_id}",
            "created": asker.journal.created,
            "model": request.model,
        }
        self._with_usage = request.include_usage
        self._counts_on = request.include_usage and request.continuous_usage_stats
        self._returns_ids = request.return_token_ids
        self._num_prompt_tokens = 0
        self._num_generated: dict[int, int] = {}  # by choice
        self._num_cached: dict[int, int] = {}

    @abstractmethod
    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
        if self._with_usage:
            yield event({**self._head, "object": self._chunk_object, "choices": [], "usage": self._usage()})
        yield DONE

    @abstractmethod
    def _chunks(self) -> AsyncGenerator[bytes]:
        """The events with choices."""

    def _event(self, choice: dict[str, Any], **extra: Any) -> bytes:
        usage = {"usage": self._usage()} if self._counts_on else {}
        return event({**self._head, "object": self._chunk_object, "choices": [choice], **usage, **extra})

    def _ids(self, **ids: list[int]) -> dict[str, Any]:
        """These, where the request wants ids of tokens."""
        return ids if self._returns_ids else {}

    def _whole_ids(self, **ids: list[int]) -> dict[str, Any]:
        """The same of an answer that is not streamed, which has null where they are not wanted, as vLLM's has."""
        return self._ids(**ids) or dict.fromkeys(ids)

    async def _pieces(self, generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Piece]]:
        """Pieces of all generations as they come, with the index of their choice; counts what was generated."""
        request_id: str = self._head["id"]
        turn, salt = self._asker.turn(request_id), self._cache_salt
        journal = self._asker.journal
        asked = [replace(one, request_id=request_id, turn=turn, cache_salt=salt) for one in journal.of(generations)]
        streams = [self._engine.generate(one) for one in asked]
        for entry in journal.replayed:  # in the order of then
            yield entry.index, self._counted(entry.index, await anext(streams[entry.index]))
        async with aclosing(merged(streams)) as arrivals:
            async for index, piece in arrivals:
                if self._asker.keeps_journal:
                    journal.note(index, piece)
                yield index, self._counted(index, piece)

    def _counted(self, index: int, piece: Piece) -> Piece:
        self._num_generated[index] = piece.num_tokens
        if index % self._n == 0:  # the others of a prompt find what this one has read
            self._num_cached[index] = piece.num_cached_tokens
        return piece

    def _usage(self) -> dict[str, Any]:
        num_generated = sum(self._num_generated.values())
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": num_generated,
            "total_tokens": self._num_prompt_tokens + num_generated,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached.values())},
        }


async def encoded(whole: Mapping[str, Any]) -> list[bytes]:
    """Its JSON in parts, a choice at a time: with log-probabilities 128 of them are hundreds of megabytes, and other
    streams have their turn in between.
    """
    choices = whole.get("choices", ())
    if len(choices) < 2:
        return [msgspec.json.encode(whole)]  # ten times as fast as json's
    # No string can hold these bytes: its quotes would be escaped.
    before, _, behind = msgspec.json.encode({**whole, "choices": []}).partition(_NO_CHOICES)
    parts = [before + _NO_CHOICES[:-1]]
    for number, choice in enumerate(choices):
        parts.append((b"," if number else b"") + msgspec.json.encode(choice))
        await asyncio.sleep(0)
    return [*parts, _NO_CHOICES[-1:] + behind]
