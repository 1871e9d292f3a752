"""A chat's answer in the words of another API: Anthropic's Messages, OpenAI's Responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

from qserve.engines.transformers.worker.api.asker import Asker
from qserve.engines.transformers.worker.api.chat import ChatAnswer
from qserve.engines.transformers.worker.engine import Engine
from qserve.engines.transformers.worker.prompts.read_body import ChatFields, ReadBody

__all__ = ["TranslatedAnswer", "Translation"]


class Translation(Protocol):
    """One answer in another API's words while it grows (`qserve.wire.dialects`)."""

    def __init__(self, echo: Mapping[str, Any], answer_id: str, created: int, num_prompt_tokens: int) -> None: ...

    def begin(self) -> Iterator[bytes]: ...

    def push(self, delta: Mapping[str, Any]) -> Iterator[bytes]: ...

    def end(self, finish_reason: str, stop: str | None, usage: Mapping[str, Any]) -> Iterator[bytes]: ...

    def document(self) -> dict[str, Any]: ...


class TranslatedAnswer:
    """A `ChatAnswer` of one choice, said by a `Translation`."""

    def __init__(self, chat: ChatAnswer, translation: Translation) -> None:
        self._chat = chat
        self._translation = translation

    @classmethod
    async def to(
        cls, engine: Engine, body: ReadBody[ChatFields], translation: type[Translation], asker: Asker
    ) -> tuple[ChatFields, TranslatedAnswer]:
        """What the chat asks for, and its answer. Raises what refuses it."""
        request, chat = await ChatAnswer.to(engine, body, asker)
        journal = asker.journal
        said = translation(body.echo, journal.answer_id, journal.created, chat.num_prompt_tokens)
        return request, cls(chat, said)

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return self._translation.document()

    async def events(self) -> AsyncGenerator[bytes]:
        """The answer as server-sent events."""
        reason, stop = "stop", None
        for event in self._translation.begin():
            yield event
        async with aclosing(self._chat.reported_deltas()) as deltas:
            async for delta, piece in deltas:
                # One write for what came together.
                if said := b"".join(self._translation.push(delta)):
                    yield said
                reason, stop = piece.finish_reason or reason, piece.stop_string
        yield b"".join(self._translation.end(reason, stop, self._chat.usage()))
