"""POST /v1/completions: plain prompts, batches of them, and `echo` with `logprobs` as lm-eval needs it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from qserve.engines.transformers.worker.api.answer import Answer
from qserve.engines.transformers.worker.api.asker import Asker
from qserve.engines.transformers.worker.api.legacy_logprobs import LegacyLogprobs
from qserve.engines.transformers.worker.api.prompt_logprobs import prompt_logprobs
from qserve.engines.transformers.worker.api.reading import answer_grammar
from qserve.engines.transformers.worker.api.requests import completion_max_tokens, generations, sampling_params
from qserve.engines.transformers.worker.batching.prompt_logprobs import ScoredPrompt
from qserve.engines.transformers.worker.engine import Engine, Piece
from qserve.engines.transformers.worker.prompts.read_body import CompletionFields, ReadBody
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.wire.errors import ApiError

__all__ = ["CompletionAnswer"]

# A few milliseconds with twenty alternatives each.
_TOKENS_AT_ONCE = 128
# Log-probabilities of prompts in one answer, alternatives counted: some 150 MB of objects while it is made.
_MAX_PROMPT_LOGPROBS = 1 << 20


class CompletionAnswer(Answer):
    """Choices are numbered prompt by prompt, `n` of each.

    With `echo` the prompt's text stands before the answer, and with `logprobs` so do its tokens. Where `echo`,
    `logprobs` and at most one new token meet, the forward that scores the prompt yields that token too, the end-of-text
    token included, and nothing is generated.
    """

    _chunk_object = "text_completion"

    def __init__(
        self,
        engine: Engine,
        request: CompletionFields,
        prompts: list[list[int]],
        grammar: AnswerGrammar | None = None,
        asker: Asker | None = None,
    ) -> None:
        super().__init__(engine, request, "cmpl", asker or Asker())
        self._request = request
        self._prompts = prompts
        self._params = replace(sampling_params(engine, request), grammar=grammar)
        limits = [completion_max_tokens(engine, request, prompt) for prompt in self._prompts]
        self._scores_only = request.echo and request.num_logprobs is not None and max(limits) <= 1
        # With echo and max_tokens 0 and no logprobs there is nothing to compute: the prompt is the answer.
        self._generations = [
            generation
            for prompt, limit in zip(self._prompts, limits, strict=True)
            if limit and not self._scores_only
            for generation in generations([prompt], self._params, limit, request)
        ]
        self._draw_next = max(limits) > 0
        self._num_prompt_tokens = sum(map(len, self._prompts))
        self._check_logprobs()

    @classmethod
    async def to(
        cls, engine: Engine, body: ReadBody[CompletionFields], asker: Asker
    ) -> tuple[CompletionFields, CompletionAnswer]:
        """The request that was read, and its answer. Raises what refuses it."""
        prompts: list[list[int]] = []
        for prompt in body.prompts:
            prompts.append(prompt.tolist())
            await asyncio.sleep(0)  # millions of ids take a while; streams go on in between
        grammar = await answer_grammar(engine, body.grammar, asker.client)
        return body.fields, cls(engine, body.fields, prompts, grammar, asker)

    def _check_logprobs(self) -> None:
        """400 for more than an answer may hold. One prompt as long as the context always may."""
        asked = [self._request.num_logprobs if self._request.echo else None, self._request.prompt_logprobs]
        a_token = sum(1 + one for one in asked if one is not None)
        count = self._request.n * a_token * self._num_prompt_tokens
        most = max(_MAX_PROMPT_LOGPROBS, a_token * self._engine.max_model_len)
        if count > most:
            message = (
                f"this asks for {count:,} log-probabilities of prompts (echo with logprobs, prompt_logprobs), and one "
                f"answer may have {most:,}; send fewer prompts at once, or lower logprobs or n"
            )
            raise ApiError(400, message, "too_many_logprobs")

    async def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        of_prompts = await self._of_prompts()
        choices = await self._echoes()
        async with aclosing(self._pieces(self._generations)) as pieces:
            async for index, piece in pieces:
                choices[index].add(piece)
        n = self._request.n
        return {
            **self._head,
            "object": "text_completion",
            "choices": [of_prompts[index // n] | choice.take(index) for index, choice in enumerate(choices)],
            "usage": self._usage(),
        }

    async def _of_prompts(self) -> list[dict[str, Any]]:
        """What is asked of the tokens of each prompt, for each of its choices."""
        nulls = {"token_ids": None, "prompt_logprobs": None}
        found = [nulls | self._whole_ids(prompt_token_ids=prompt) for prompt in self._prompts]
        if (num_top := self._request.prompt_logprobs) is None:
            return found
        naming = self._engine.token_text
        for prompt, scored, told in zip(
            self._prompts, await self._engine.rank(self._prompts, num_top, self._head["id"]), found, strict=True
        ):
            told["prompt_logprobs"] = await prompt_logprobs(naming, prompt, scored)
        return found

    async def _chunks(self) -> AsyncGenerator[bytes]:
        """An echoed prompt is the first event of its choice, and the first of each has the ids of its prompt."""
        choices = await self._echoes()
        for index, choice in enumerate(choices):
            if choice.text or choice.finish_reason:
                yield self._event(choice.part(index))
        reports_tokens = self._request.num_logprobs is not None or self._returns_ids
        async with aclosing(self._pieces(self._generations)) as pieces:
            async for index, piece in pieces:
                if piece.text or piece.finish_reason or (reports_tokens and piece.tokens):
                    choices[index].add(piece)
                    yield self._event(choices[index].part(index))

    async def _echoes(self) -> list[_Choice]:
        """The choices as they are before anything is generated."""
        n = self._request.n
        choices = [self._empty_choice(prompt) for prompt in self._prompts for _ in range(n)]
        if not self._request.echo:
            return choices
        scored: list[ScoredPrompt | None] = [None] * len(choices)
        if self._request.num_logprobs is not None:
            scored = [*await self._score([prompt for prompt in self._prompts for _ in range(n)])]
        for index, choice in enumerate(choices):
            await choice.echo(self._prompts[index // n], scored[index])
            if self._scores_only or not self._generations:
                self._num_generated[index] = choice.close(scored[index])
        return choices

    async def _score(self, prompts: list[list[int]]) -> list[ScoredPrompt]:
        draw_next = self._scores_only and self._draw_next
        return await self._engine.score(
            prompts, self._params, draw_next=draw_next, n=self._request.n, request_id=self._head["id"]
        )

    def _empty_choice(self, prompt: list[int]) -> _Choice:
        logprobs = None if self._request.num_logprobs is None else LegacyLogprobs(self._engine.token_text)
        return _Choice(self._engine, logprobs, self._ids(prompt_token_ids=prompt))


class _Choice:
    """One choice while it grows. `of_prompt`: the prompt's ids for the first part of a stream, where ids are wanted."""

    def __init__(self, engine: Engine, logprobs: LegacyLogprobs | None, of_prompt: dict[str, Any]) -> None:
        self._engine = engine
        self._logprobs = logprobs
        self._of_prompt = of_prompt
        self._ids: list[int] | None = [] if of_prompt else None
        self.text = ""
        self.finish_reason: str | None = None

    async def echo(self, prompt: list[int], scored: ScoredPrompt | None) -> None:
        """Put the prompt before the answer, a few tokens at a time: streams of others go on in between."""
        self.text = self._engine.tokenizer.decode(prompt)
        await asyncio.sleep(0)
        if self._logprobs is None or scored is None:
            return
        entries = zip(prompt, scored.logprobs, scored.top, strict=True)
        while some := list(itertools.islice(entries, _TOKENS_AT_ONCE)):
            for token_id, logprob, top in some:
                self._logprobs.add(token_id, logprob, top)
            await asyncio.sleep(0)

    def close(self, scored: ScoredPrompt | None) -> int:
        """End after the prompt, with the one token that its forward drew; the number of tokens drawn."""
        self.finish_reason = "length"
        if scored is None or scored.next_token is None:
            return 0
        token = scored.next_token
        self._add_ids([token.token_id])
        if token.token_id in self._engine.eos_token_ids:
            self.finish_reason = "stop"
        else:
            self.text += self._engine.tokenizer.decode([token.token_id])
        if self._logprobs is not None:
            self._logprobs.add(token.token_id, token.logprob, token.top)
        return 1

    def add(self, piece: Piece) -> None:
        """Append what was generated."""
        self.text += piece.text
        self.finish_reason = piece.finish_reason
        self._add_ids(piece.token_ids)
        if self._logprobs is not None:
            for token in piece.tokens:
                self._logprobs.add(token.token_id, token.logprob, token.top)

    def take(self, index: int) -> dict[str, Any]:
        """The entry of `choices`, with what came since it was taken last: all of it, or the part that is streamed."""
        logprobs = None if self._logprobs is None else self._logprobs.take()
        text, self.text = self.text, ""
        taken = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": self.finish_reason}
        if self._ids is not None:
            taken["token_ids"], self._ids = self._ids, []
        return taken

    def part(self, index: int) -> dict[str, Any]:
        """The same for a stream: without tokens there are no logprobs of them."""
        taken = self.take(index) | self._of_prompt
        self._of_prompt = {}
        return taken if taken["logprobs"] is None or taken["logprobs"]["tokens"] else {**taken, "logprobs": None}

    def _add_ids(self, ids: list[int]) -> None:
        if self._ids is not None:
            self._ids += ids
