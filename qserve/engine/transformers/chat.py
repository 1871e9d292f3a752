"""POST /v1/chat/completions: from the request to the answer, whole or streamed."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from qserve.engine.transformers.engine import Engine, Generation, Piece, merged
from qserve.engine.transformers.requests import chat_generations
from qserve.engine.transformers.sampling import TokenChoice
from qserve.engine.transformers.text import TokenText
from qserve.wire.openai import ChatCompletionRequest
from qserve.wire.sse import DONE, event

__all__ = ["ChatAnswer"]


class ChatAnswer:
    """One request being answered. Building it refuses what can't be answered; nothing runs before it is read."""

    def __init__(self, engine: Engine, request: ChatCompletionRequest) -> None:
        self._engine = engine
        self._request = request
        self._generations: list[Generation] = chat_generations(engine, request)
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
        self._num_generated = 0

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        texts = [""] * len(self._generations)
        reasons: list[str | None] = [None] * len(texts)
        logprobs: list[list[dict[str, Any]]] = [[] for _ in texts]
        async with aclosing(self._pieces()) as pieces:
            async for index, piece in pieces:
                texts[index] += piece.text
                reasons[index] = piece.finish_reason
                logprobs[index] += self._describe(piece.tokens)
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": logprobs[index]} if self._request.logprobs else None,
                "finish_reason": reasons[index],
            }
            for index, text in enumerate(texts)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        for index in range(len(self._generations)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async with aclosing(self._pieces()) as pieces:
            async for index, piece in pieces:
                if piece.text or piece.finish_reason or (self._request.logprobs and piece.tokens):
                    yield self._chunk(index, {"content": piece.text} if piece.text else {}, piece)
        if self._request.stream_options is not None and self._request.stream_options.include_usage:
            yield event({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage()})
        yield DONE

    async def _pieces(self) -> AsyncGenerator[tuple[int, Piece]]:
        streams = [self._engine.generate(generation) for generation in self._generations]
        async with aclosing(merged(streams)) as arrivals:
            async for index, piece in arrivals:
                if piece.finish_reason is not None:
                    self._num_generated += piece.num_tokens
                yield index, piece

    def _chunk(self, index: int, delta: dict[str, str], piece: Piece | None = None) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if piece is not None:
            choice["finish_reason"] = piece.finish_reason
            if self._request.logprobs:
                choice["logprobs"] = {"content": self._describe(piece.tokens)}
        return event({**self._head, "object": "chat.completion.chunk", "choices": [choice]})

    def _describe(self, tokens: tuple[TokenChoice, ...]) -> list[dict[str, Any]]:
        if not self._request.logprobs:
            return []
        naming = self._engine.token_text
        return [
            {
                **_entry(naming, token.token_id, token.logprob),
                "top_logprobs": [_entry(naming, token_id, logprob) for token_id, logprob in token.top],
            }
            for token in tokens
        ]

    def _usage(self) -> dict[str, int]:
        num_prompt = len(self._generations[0].prompt_ids)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_generated,
            "total_tokens": num_prompt + self._num_generated,
        }


def _entry(naming: TokenText, token_id: int, logprob: float | None) -> dict[str, Any]:
    return {"token": naming.label(token_id), "logprob": logprob, "bytes": list(naming.raw(token_id))}
