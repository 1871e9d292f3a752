"""Drawing answers: each is a streamed request of its own, all of them at once; then the reward model's scores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qserve.ui.chat.conversation import Answer, Conversation
from qserve.ui.client.api import Api, ApiFailure

__all__ = ["Sampling", "draw_answers", "reward_answers"]

# Pieces come up to hundreds a second; the page is drawn anew at most so often. The first piece never waits.
_REDRAW_S = 0.05
# Best of N needs answers that differ; many models answer greedily by default.
_BEST_OF_TEMPERATURE = 0.7
_LEAST_PIECES = 4
_LEAST_S = 0.05


@dataclass(frozen=True)
class Sampling:
    """How answers of one side are drawn. None: without the field, for which the API takes the model's own default."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    thinking: bool | None = None
    num_answers: int = 1

    @property
    def sent_temperature(self) -> float | None:
        """What the request says; None leaves it to the API."""
        is_best_of = self.temperature is None and self.num_answers > 1
        return _BEST_OF_TEMPERATURE if is_best_of else self.temperature

    def body(self, messages: Sequence[dict[str, str]], index: int) -> dict[str, Any]:
        """The request of answer number `index`. A seed is counted up, or all answers would be the same."""
        given = {
            name: value
            for name in ("top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
            if (value := getattr(self, name)) is not None
        }
        if self.sent_temperature is not None:
            given["temperature"] = self.sent_temperature
        if self.seed is not None:
            given["seed"] = self.seed + index
        if self.thinking is not None:
            given["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        return {
            "model": self.model,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **given,
        }


@dataclass
class _Draft:
    """An answer that is being written. `changed` is set whenever there is more to show."""

    answer: Answer
    changed: asyncio.Event
    _began: float = field(default_factory=time.monotonic)
    _first: float = 0.0
    _num_pieces: int = 0

    def take(self, event: dict[str, Any]) -> None:
        """One event of the stream."""
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            content = delta.get("content") or ""
            if content or reasoning:  # not for the role alone: the page would be drawn without a word, and wait then
                self._count()
                self.changed.set()
            self.answer = replace(
                self.answer,
                content=self.answer.content + content,
                reasoning=self.answer.reasoning + reasoning,
                finish_reason=choice.get("finish_reason") or self.answer.finish_reason,
            )
        if usage := event.get("usage"):
            self.answer = replace(
                self.answer, prompt_tokens=usage.get("prompt_tokens"), completion_tokens=usage.get("completion_tokens")
            )

    def end(self) -> None:
        """The stream is over: what can be told of its speed."""
        tokens = self.answer.completion_tokens or self._num_pieces
        seconds = time.monotonic() - self._first
        # A few tokens that came in one piece, or all at once, would tell of the network, not of the model.
        speed = (tokens - 1) / seconds if self._num_pieces >= _LEAST_PIECES and seconds >= _LEAST_S else None
        finish = self.answer.finish_reason or "stop"
        self.answer = replace(self.answer, tokens_per_s=speed, finish_reason=finish)
        self.changed.set()

    def fail(self, failure: ApiFailure) -> None:
        """The API's sentence takes the place of what is missing; what had arrived is kept."""
        self.answer = replace(
            self.answer,
            error=str(failure),
            error_code=failure.code,
            error_status=failure.status,
            error_param=failure.param,
            finish_reason="error",
        )
        self.changed.set()

    def _count(self) -> None:
        self._num_pieces += 1
        if not self._first:
            self._first = time.monotonic()
            self.answer = replace(self.answer, ttft_ms=1000 * (self._first - self._began))


async def draw_answers(
    api: Api, conversation: Conversation, sides: Sequence[Sampling], systems: Sequence[str], *, goes_on: bool = False
) -> AsyncGenerator[Conversation, None]:
    """The conversation with answers to its last question, again and again as they grow; at last with all of them.

    `systems` are the sides' system prompts. `goes_on`: the first answer of each side is written on, its others stay.
    Closing the iterator closes the requests, which frees their places at the worker.
    """
    changed = asyncio.Event()
    before = conversation.turns[-1].sides if goes_on else ()
    drafts = [
        [_Draft(answer, changed) for answer in _beginnings(side, before[number] if number < len(before) else ())]
        for number, side in enumerate(sides)
    ]
    work = [
        asyncio.create_task(
            _draw(api, draft, _body(replace(conversation, system=systems[number]), number, side, index, draft.answer))
        )
        for number, side in enumerate(sides)
        for index, draft in enumerate(drafts[number])
    ]

    def current() -> Conversation:
        """What is drawn, and beside it what stays."""
        drawn = [
            [*(draft.answer for draft in side), *(before[number][1:] if number < len(before) else ())]
            for number, side in enumerate(drafts)
        ]
        return conversation.answered([*drawn, *before[len(drawn) :]])

    try:
        while not all(task.done() for task in work):
            await _first_of(changed, work)
            changed.clear()
            yield current()
            await asyncio.sleep(_REDRAW_S)
        yield current()
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def reward_answers(api: Api, conversation: Conversation, model: str, *, is_ranked: bool = True) -> Conversation:
    """The conversation with rewards on the answers to its last question; where `is_ranked`, the best comes first.

    Raises ApiFailure.
    """
    sides = []
    for number, answers in enumerate(conversation.turns[-1].sides):
        whole = [one for one in answers if one.text and not one.error]
        if whole:
            prompt = conversation.messages(number, len(conversation.turns) - 1)
            prompt.append({"role": "user", "content": conversation.turns[-1].question})
            body = {"model": model, "prompt": prompt, "responses": [one.text for one in whole]}
            scored = await api.post("/v1/reward", body)
            rewards = {row["index"]: float(row["reward"]) for row in scored["data"]}
            whole = [replace(one, reward=rewards[index]) for index, one in enumerate(whole)]
            if is_ranked:
                whole.sort(key=lambda one: -(one.reward or 0.0))
        sides.append([*whole, *(one for one in answers if not one.text or one.error)])
    return conversation.answered(sides)


def _beginnings(side: Sampling, before: Sequence[Answer]) -> list[Answer]:
    """What the answers of a side begin with: nothing, or the first of those that are there."""
    begun = Answer(model=side.model, temperature=side.sent_temperature)
    if before:
        return [replace(begun, content=before[0].content, reasoning=before[0].reasoning)]
    return [begun] * side.num_answers


def _body(conversation: Conversation, number: int, side: Sampling, index: int, begun: Answer) -> dict[str, Any]:
    messages = conversation.messages(number, len(conversation.turns) - 1)
    messages.append({"role": "user", "content": conversation.turns[-1].question})
    if not begun.content:
        return side.body(messages, index)
    messages.append({"role": "assistant", "content": begun.content})
    return {**side.body(messages, index), "continue_final_message": True, "add_generation_prompt": False}


async def _draw(api: Api, draft: _Draft, body: dict[str, Any]) -> None:
    try:
        stream = api.stream("/v1/chat/completions", body)
        async for event in stream:
            draft.take(event)
        draft.end()
    except ApiFailure as failure:
        draft.fail(failure)


async def _first_of(changed: asyncio.Event, work: Sequence[asyncio.Task[None]]) -> None:
    """Wait until there is something to show, or nothing more to wait for."""
    waiting = asyncio.create_task(changed.wait())
    try:
        await asyncio.wait([waiting, *(task for task in work if not task.done())], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
