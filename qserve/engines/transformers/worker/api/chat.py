"""POST /v1/chat/completions: from the request to the answer, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from qserve.engines.transformers.worker.api.answer import Answer
from qserve.engines.transformers.worker.api.asker import Asker
from qserve.engines.transformers.worker.api.prompt_logprobs import prompt_logprobs
from qserve.engines.transformers.worker.api.reading import answer_grammar, reading_rules
from qserve.engines.transformers.worker.api.requests import chat_generations
from qserve.engines.transformers.worker.engine import Engine, Piece
from qserve.engines.transformers.worker.parsing.message import MessageReader, MessageWriter, ReadingRules
from qserve.engines.transformers.worker.prompts.read_body import ChatFields, ReadBody
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.engines.transformers.worker.sampling.params import TokenChoice

__all__ = ["ChatAnswer"]


class ChatAnswer(Answer):
    """`n` choices that continue one conversation."""

    _chunk_object = "chat.completion.chunk"

    def __init__(self, engine: Engine, body: ReadBody[ChatFields], grammar: AnswerGrammar | None, asker: Asker) -> None:
        super().__init__(engine, body.fields, "chatcmpl", asker)
        self._request = request = body.fields
        self._generations = chat_generations(engine, body, grammar)
        self._num_prompt_tokens = len(self._generations[0].prompt_ids)
        rules = reading_rules(engine.chat_format, request, body.thought)
        self._thinks = engine.chat_format.thinking.thinks
        self._num_thought = 0
        self._describes = request.num_logprobs is not None
        ids = [f"{asker.journal.answer_id}/{index}" for index in range(len(self._generations))]
        self._choices = [_Choice(rules, request, self._thinks, answer_id) for answer_id in ids]

    @classmethod
    async def to(cls, engine: Engine, body: ReadBody[ChatFields], asker: Asker) -> tuple[ChatFields, ChatAnswer]:
        """The request that was read, and its answer. Raises what refuses it."""
        grammar = await answer_grammar(engine, body.grammar, asker.client, body.thought)
        return body.fields, cls(engine, body, grammar, asker)

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        of_prompt = await self._of_prompt()
        reasons: list[str | None] = [None] * len(self._choices)
        logprobs: list[list[msgspec.Raw]] = [[] for _ in self._choices]
        ids: list[list[int]] = [[] for _ in self._choices]
        async with aclosing(self.deltas()) as deltas:
            async for index, _, piece in deltas:
                reasons[index] = self._choices[index].finish_reason(piece)
                logprobs[index] += self._describe(piece.tokens)
                ids[index] += piece.token_ids
        choices = [
            {
                "index": index,
                "message": choice.writer.message(),
                "logprobs": {"content": logprobs[index], "refusal": None} if self._describes else None,
                "finish_reason": reasons[index],
                **self._whole_ids(token_ids=ids[index]),
            }
            for index, choice in enumerate(self._choices)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage(), **of_prompt}

    async def _of_prompt(self) -> dict[str, Any]:
        """What is asked of the prompt's tokens."""
        prompt = self._generations[0].prompt_ids
        found = {"prompt_logprobs": None, **self._whole_ids(prompt_token_ids=prompt)}
        if (num_top := self._request.prompt_logprobs) is None:
            return found
        (scored,) = await self._engine.rank([prompt], num_top, self._head["id"])
        return {**found, "prompt_logprobs": await prompt_logprobs(self._engine.token_text, prompt, scored)}

    async def _chunks(self) -> AsyncGenerator[bytes]:
        for index in range(len(self._choices)):
            begin = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk(index, begin, **self._ids(prompt_token_ids=self._generations[0].prompt_ids))
        async with aclosing(self.deltas()) as deltas:
            async for index, delta, piece in deltas:
                if delta or piece.finish_reason or (self._reports_tokens and piece.tokens):
                    yield self._chunk(index, delta, piece)

    async def deltas(self) -> AsyncGenerator[tuple[int, dict[str, Any], Piece]]:
        """What each piece adds to its choice, as OpenAI streams it; {} for nothing."""
        async with aclosing(self._pieces(self._generations)) as pieces:
            async for index, piece in pieces:
                yield index, self._read(index, piece), piece

    async def reported_deltas(self) -> AsyncGenerator[tuple[dict[str, Any], Piece]]:
        """The same of the first choice; a delta with text has the `logprobs` of its tokens, where they are wanted."""
        reader = self._choices[0].reader
        waiting, was_thinking = list[TokenChoice](), reader.is_thinking
        async with aclosing(self.deltas()) as deltas:
            async for _, delta, piece in deltas:
                waiting += () if was_thinking else piece.tokens
                was_thinking = reader.is_thinking
                if "content" in delta and self._describes:
                    delta["logprobs"], waiting = self._describe(tuple(waiting)), []
                yield delta, piece

    @property
    def num_prompt_tokens(self) -> int:
        """Of the conversation."""
        return self._num_prompt_tokens

    def usage(self) -> dict[str, Any]:
        """Tokens so far."""
        return self._usage()

    def _read(self, index: int, piece: Piece) -> dict[str, Any]:
        choice = self._choices[index]
        delta = choice.read(piece)
        self._num_thought += choice.reader.is_thinking
        return delta

    @property
    def _reports_tokens(self) -> bool:
        return self._describes or self._returns_ids

    def _chunk(self, index: int, delta: dict[str, Any], piece: Piece | None = None, **extra: Any) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if piece is not None:
            choice["finish_reason"] = self._choices[index].finish_reason(piece)
            choice |= self._ids(token_ids=piece.token_ids)
            if self._describes and piece.tokens:
                choice["logprobs"] = {"content": self._describe(piece.tokens), "refusal": None}
        return self._event(choice, **extra)

    def _usage(self) -> dict[str, Any]:
        usage = super()._usage()
        return usage | {"completion_tokens_details": {"reasoning_tokens": self._num_thought}} if self._thinks else usage

    def _describe(self, tokens: tuple[TokenChoice, ...]) -> list[msgspec.Raw]:
        return [self._engine.chat_logprobs.of(token) for token in tokens] if self._describes else []


class _Choice:
    """One choice while it grows."""

    def __init__(self, rules: ReadingRules, request: ChatFields, thinks: bool, answer_id: str) -> None:
        self.reader = MessageReader(rules)
        self.writer = MessageWriter(thinks, shows_thoughts=request.include_reasoning, answer_id=answer_id)
        self._is_named = request.names_tool

    def read(self, piece: Piece) -> dict[str, Any]:
        """The delta that a piece makes."""
        parts = self.reader.push(piece.text) if piece.text else []
        if piece.finish_reason is not None:
            parts += self.reader.flush()
        return self.writer.delta(parts) if parts else {}

    def finish_reason(self, piece: Piece) -> str | None:
        """As OpenAI says it: a tool that was named by the client ends with `stop`."""
        is_call = piece.finish_reason == "stop" and self.writer.calls and not self._is_named
        return "tool_calls" if is_call else piece.finish_reason
