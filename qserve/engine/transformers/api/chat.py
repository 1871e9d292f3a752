"""POST /v1/chat/completions: from the request to the answer, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from qserve.engine.prompts.token_text import TokenText
from qserve.engine.transformers.api.answer import Answer
from qserve.engine.transformers.api.requests import chat_generations
from qserve.engine.transformers.engine import Engine, Piece
from qserve.engine.transformers.sampling.sampler import TokenChoice
from qserve.wire.openai import ChatCompletionRequest

__all__ = ["ChatAnswer"]


class ChatAnswer(Answer):
    """`n` choices that continue one conversation."""

    _chunk_object = "chat.completion.chunk"

    def __init__(self, engine: Engine, request: ChatCompletionRequest, prompt: list[int]) -> None:
        super().__init__(engine, request, "chatcmpl")
        self._request = request
        self._generations = chat_generations(engine, request, prompt)
        self._num_prompt_tokens = len(self._generations[0].prompt_ids)

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        texts = [""] * len(self._generations)
        reasons: list[str | None] = [None] * len(texts)
        logprobs: list[list[dict[str, Any]]] = [[] for _ in texts]
        async with aclosing(self._pieces(self._generations)) as pieces:
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

    async def _chunks(self) -> AsyncGenerator[bytes]:
        for index in range(len(self._generations)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async with aclosing(self._pieces(self._generations)) as pieces:
            async for index, piece in pieces:
                if piece.text or piece.finish_reason or (self._request.logprobs and piece.tokens):
                    yield self._chunk(index, {"content": piece.text} if piece.text else {}, piece)

    def _chunk(self, index: int, delta: dict[str, str], piece: Piece | None = None) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if piece is not None:
            choice["finish_reason"] = piece.finish_reason
            if self._request.logprobs:
                choice["logprobs"] = {"content": self._describe(piece.tokens)}
        return self._event(choice)

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


def _entry(naming: TokenText, token_id: int, logprob: float | None) -> dict[str, Any]:
    return {"token": naming.label(token_id), "logprob": logprob, "bytes": list(naming.raw(token_id))}
