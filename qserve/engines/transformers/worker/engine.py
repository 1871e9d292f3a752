"""The engine behind the routes: a loaded model, its batcher and scorer, and text that comes out piece by piece."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator
from collections.abc import Sequence as SequenceOf
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from qserve.core.rope import read_rope
from qserve.engines.transformers.worker.api.chat_logprobs import ChatLogprobs
from qserve.engines.transformers.worker.batching.batcher import Batcher, Sequence
from qserve.engines.transformers.worker.batching.prompt_logprobs import PromptToScore, ScoredPrompt
from qserve.engines.transformers.worker.batching.scoring import PromptScorer
from qserve.engines.transformers.worker.batching.turns import NO_CLIENT, Turn
from qserve.engines.transformers.worker.chat_format import ChatFormat, chat_format
from qserve.engines.transformers.worker.grammar.compiled import Grammars
from qserve.engines.transformers.worker.prompts.bounds import max_bytes_per_token
from qserve.engines.transformers.worker.prompts.token_text import TokenText
from qserve.engines.transformers.worker.sampling.params import SamplingParams, TokenChoice
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.engines.transformers.worker.sampling.text import StopStrings, TextStream
from qserve.errors import BrokenCheckpoint, DoesNotFit
from qserve.model.failures import PromptRefused, SequenceFailed
from qserve.model.load import LoadedModel
from qserve.model.out_of_memory import OutOfMemory
from qserve.planner.search.stretch import most_stretched
from qserve.worker.heartbeat import Heartbeat
from qserve.worker.limits import EngineLimits

__all__ = ["Engine", "Generation", "Piece"]


@dataclass(frozen=True)
class Piece:
    """Text that is ready to be shown, with the tokens that came since the last piece.

    `tokens` leaves out a token that ended the sequence, `end_id`; `num_tokens` counts it. The last piece has a
    `finish_reason`, and a `stop_string` where one was met. Each says how many tokens of the prompt were in the cache.
    """

    text: str
    tokens: tuple[TokenChoice, ...]
    num_tokens: int
    finish_reason: str | None = None
    stop_string: str | None = None
    num_cached_tokens: int = 0
    end_id: int | None = None

    @property
    def token_ids(self) -> list[int]:
        """All of them, with the one that ended the sequence."""
        return [*(token.token_id for token in self.tokens), *(() if self.end_id is None else (self.end_id,))]


@dataclass(frozen=True)
class Generation:
    """One answer to be generated: a prompt in tokens, and what `request_id` asked for.

    `turn` is whose it is, and cached prompts are shared among those of one `cache_salt`. The tokens `replayed`
    were drawn by another worker, which found `num_cached_tokens` of the prompt in its cache.
    """

    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    request_id: str = ""
    turn: Turn = NO_CLIENT
    cache_salt: str = ""
    replayed: SequenceOf[int] = ()
    num_cached_tokens: int | None = None


class Engine:
    """Serves one model. All methods belong to one event loop."""

    def __init__(
        self,
        loaded: LoadedModel,
        batcher: Batcher,
        scorer: PromptScorer,
        *,
        max_model_len: int,
        max_num_seqs: int,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """`heartbeat` is where its progress is told, if anywhere."""
        self._heartbeat = heartbeat
        self._num_unfinished = 0
        self.loaded = loaded
        self.tokenizer = loaded.tokenizer
        self.batcher = batcher
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.token_text = TokenText(loaded.tokenizer.backend_tokenizer)
        config = loaded.model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        rope = read_rope(config.to_dict(), int(config.max_position_embeddings), None, "config.json")
        self.max_positions, self._most_stretched = rope.reach, most_stretched(rope)
        # One that has no row is never drawn.
        self.eos_token_ids = frozenset(one for one in _eos_token_ids(loaded) if one < self.vocab_size)
        self.defaults = _default_params(loaded.model.generation_config)
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self._scorer = scorer
        self._ids = itertools.count()

    @cached_property
    def limits(self) -> EngineLimits:
        """What it takes."""
        per_token = max_bytes_per_token(json.loads(self.tokenizer.backend_tokenizer.to_str()))
        max_prompt_bytes = None if per_token is None else per_token * self.max_model_len
        positions = self.max_positions, self._most_stretched
        return EngineLimits(self.max_model_len, self.max_num_seqs, max_prompt_bytes, *positions)

    @cached_property
    def grammars(self) -> Grammars:
        """What answers can be bound to."""
        return Grammars(self.tokenizer.backend_tokenizer, self.vocab_size, self.eos_token_ids)

    def prepare_grammars(self) -> None:
        """Make `grammars` before the first request: for a second no other thread runs while the vocabulary is read."""
        self.grammars.start()

    @cached_property
    def chat_logprobs(self) -> ChatLogprobs:
        """How chats tell of tokens."""
        return ChatLogprobs(self.token_text)

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How the model writes thoughts and calls."""
        return chat_format(self.tokenizer, self.vocab_size)

    def check_length(self, num_prompt_tokens: int, max_tokens: int | None) -> int:
        """The number of tokens that may be generated; raises with the numbers when that is none."""
        room = self.max_model_len - num_prompt_tokens
        if num_prompt_tokens == 0:
            raise PromptRefused("the prompt is empty: it has no tokens", "empty_prompt", "prompt")
        if room < (1 if max_tokens is None else max_tokens):
            raise self.limits.context.too_long(
                num_prompt_tokens,
                max_tokens=max_tokens,
                advice="shorten the prompt or lower max_tokens",
                param="messages" if max_tokens is None else "max_tokens",
            )
        return room if max_tokens is None else max_tokens

    async def generate(self, generation: Generation) -> AsyncGenerator[Piece]:
        """The pieces of one answer. Closing the iterator, or cancelling its task, stops the generation.

        Raises SequenceFailed where the engine can't go on with it.
        """
        params = generation.params
        sequence = Sequence(
            request_id=f"{generation.request_id or 'internal'}/{next(self._ids)}",
            prompt_ids=generation.prompt_ids,
            max_tokens=generation.max_tokens,
            stop_token_ids=params.stop_token_ids,
            sampler=SequenceSampler(params, generation.prompt_ids, generation.replayed),
            turn=generation.turn,
            cache_salt=generation.cache_salt,
        )
        self.num_prompt_tokens += len(generation.prompt_ids)
        text = TextStream(self.tokenizer, skip_special_tokens=generation.skip_special_tokens)
        stops = StopStrings(generation.stops, include=generation.include_stop)
        told_cached = generation.num_cached_tokens
        self._count(1)
        self.batcher.submit(sequence)
        try:
            for num_tokens in itertools.count(1):
                item = await sequence.outbox.get()
                if isinstance(item, SequenceFailed):
                    raise item
                self.num_generated_tokens += 1
                if self._heartbeat is not None:
                    self._heartbeat.beat()
                num_cached = sequence.num_cached_tokens if told_cached is None else told_cached
                piece = _next_piece(item, num_tokens, generation, text, stops, num_cached)
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:
            self.batcher.cancel(sequence)
            self._count(-1)

    def _count(self, change: int) -> None:
        """Sequences came or went."""
        self._num_unfinished += change
        if self._heartbeat is not None:
            self._heartbeat.beat(self._num_unfinished)

    async def score(
        self,
        prompts: SequenceOf[list[int]],
        params: SamplingParams,
        *,
        draw_next: bool,
        n: int = 1,
        request_id: str = "",
    ) -> list[ScoredPrompt]:
        """Log-probabilities of prompts, and the token after each when `draw_next`.

        Each prompt stands `n` times in a row; the copies draw as the `n` answers of a generation would. Raises
        SequenceFailed.
        """
        self.num_prompt_tokens += sum(map(len, prompts))
        jobs = [
            PromptToScore(
                prompt,
                params.num_logprobs or 0,
                SequenceSampler(seeded(params, index % n), prompt) if draw_next else None,
                request_id,
            )
            for index, prompt in enumerate(prompts)
        ]
        return await self._scored(jobs)

    async def rank(self, prompts: SequenceOf[list[int]], num_top: int, request_id: str) -> list[ScoredPrompt]:
        """Log-probabilities and ranks of the tokens of prompts. Raises SequenceFailed."""
        return await self._scored([PromptToScore(one, num_top, None, request_id, is_ranked=True) for one in prompts])

    async def _scored(self, jobs: list[PromptToScore]) -> list[ScoredPrompt]:
        self._count(len(jobs))
        try:
            return await self._scorer.score(jobs)
        finally:
            self._count(-len(jobs))

    async def warm_up(self, num_tokens: int = 1) -> None:
        """A prompt of `num_tokens` through everything, so that the first user does not pay for first-time set-up.

        Raises BrokenCheckpoint when nothing sensible comes out: such a model would fail every request; DoesNotFit when
        memory runs out: the largest step that was planned is what is tried.
        """
        params, prompt = SamplingParams(temperature=0.0), [min(self.eos_token_ids, default=0)] * num_tokens
        try:
            async for _ in self.generate(Generation(prompt, params, max_tokens=1)):
                pass
            await self.score([prompt], params, draw_next=False)
            if self.batcher.step_path.is_captured:  # a replay, before the first request needs one
                async for _ in self.generate(Generation(prompt[:1], params, max_tokens=2)):
                    pass
        except SequenceFailed as error:
            kind = DoesNotFit if isinstance(error, OutOfMemory) else BrokenCheckpoint
            raise kind(f"the model can't be used: {error}") from error
        self.num_prompt_tokens = self.num_generated_tokens = 0

    def stop(self) -> None:
        """End both threads."""
        self._scorer.stop()
        self.batcher.stop()
        if "grammars" in self.__dict__:
            self.grammars.stop()


def seeded(params: SamplingParams, index: int) -> SamplingParams:
    """The parameters of the `index`-th answer to one request: each draws differently, and the same again next time."""
    return params if params.seed is None or index == 0 else replace(params, seed=params.seed + index)


def _next_piece(
    choice: TokenChoice,
    num_tokens: int,
    generation: Generation,
    text: TextStream,
    stops: StopStrings,
    num_cached_tokens: int,
) -> Piece:
    ends = choice.token_id in generation.params.stop_token_ids
    may_end = num_tokens > generation.params.min_tokens
    shown, stopped = stops.push("" if ends else text.push(choice.token_id), may_end=may_end)
    finish_reason = "stop" if stopped or ends else "length" if num_tokens >= generation.max_tokens else None
    if finish_reason is not None and not stopped:
        tail, stopped = stops.push(text.flush(), may_end=may_end)
        shown += tail if stopped else tail + stops.flush()
        finish_reason = "stop" if stopped else finish_reason
    tokens, end_id = ((), choice.token_id) if ends else ((choice,), None)
    return Piece(shown, tokens, num_tokens, finish_reason, stops.found, num_cached_tokens, end_id)


def _eos_token_ids(loaded: LoadedModel) -> frozenset[int]:
    """Tokens that end an answer: generation_config.json's, and the tokenizer's own."""
    configured = loaded.model.generation_config.eos_token_id
    ids = {configured} if isinstance(configured, int) else set(configured or ())
    return frozenset({*ids, loaded.tokenizer.eos_token_id} - {None})


def _default_params(config: Any) -> SamplingParams:
    """What generation_config.json recommends, for requests that do not say."""
    if config.do_sample is False or (config.do_sample is None and config.temperature is None):
        return SamplingParams(temperature=0.0 if config.do_sample is False else 1.0)
    return SamplingParams(
        temperature=1.0 if config.temperature is None else float(config.temperature),
        top_p=1.0 if config.top_p is None else float(config.top_p),
        top_k=0 if config.top_k is None else int(config.top_k),
        min_p=0.0 if config.min_p is None else float(config.min_p),
        repetition_penalty=1.0 if config.repetition_penalty is None else float(config.repetition_penalty),
    )


# Each with twenty alternatives takes two milliseconds; what is there already is taken without a turn for anybody else.
_MOST_AT_ONCE = 32


async def merged(streams: SequenceOf[AsyncGenerator[Piece]]) -> AsyncGenerator[tuple[int, Piece]]:
    """Pieces of several answers as they come, with the index of the answer. The first error ends all of them.

    Other streams have their turn after `_MOST_AT_ONCE` pieces: those of many answers may come faster than they are
    written down, and the more had gathered meanwhile, the longer all others would wait for the next turn.
    """
    if len(streams) == 1:  # the usual case needs neither tasks nor a queue
        async with aclosing(streams[0]) as only:
            async for piece in only:
                yield 0, piece
        return
    arrivals: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue(_MOST_AT_ONCE)

    async def forward(index: int, stream: AsyncGenerator[Piece]) -> None:
        try:
            async for piece in stream:
                await arrivals.put((index, piece))
            await arrivals.put(None)
        except Exception as error:
            await arrivals.put(error)

    tasks = [asyncio.create_task(forward(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            arrival = await arrivals.get()
            if isinstance(arrival, BaseException):
                raise arrival
            if arrival is None:
                running -= 1
            else:
                yield arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
