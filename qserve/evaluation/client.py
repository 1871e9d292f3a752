"""lm-eval's two HTTP clients, corrected for models that think. Nothing else subclasses lm-eval.

Imported where lm-eval is called, never before: it takes a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientResponseError
from lm_eval.models.api_models import LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

from qserve.evaluation.answers.generations import Generations
from qserve.evaluation.answers.limits import token_limit
from qserve.evaluation.answers.thinking import Answer, Thinking, cut_at_stops, split_answer
from qserve.evaluation.environment import REFUSAL
from qserve.evaluation.refusals import REFUSED, Refusals
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel

__all__ = ["ChatClient", "CompletionClient", "Settings"]

# Of log-likelihoods: several prompts a request save round trips; the server packs them with those of other requests.
PROMPTS_A_REQUEST = 8
# OpenAI takes four stop strings; more are applied to the answer here.
_MOST_STOPS = 4
_REFUSED_STATUS = 400
_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True)
class Settings:
    """What both clients need to know beyond lm-eval's own arguments."""

    served: ServedModel
    request: EvalRequest
    thinking: Thinking
    generations: Generations
    refusals: Refusals = field(default_factory=Refusals)


class _Recording:
    """What the two have in common: which question an answer belongs to, and what becomes of it."""

    settings: Settings
    _asked: ContextVar[tuple[Any, Any]] = ContextVar("asked")

    async def get_batched_requests(self, *args: Any, **kwargs: Any) -> Any:
        """All answers. The first that fails ends the others, for each of which asyncio would print a traceback."""
        asyncio.get_running_loop().set_exception_handler(_but_for_unawaited)
        return await super().get_batched_requests(*args, **kwargs)  # type: ignore[misc]

    async def amodel_call(self, session: Any, sem: Any, messages: Any, **kwargs: Any) -> Any:
        """One request, in a task of its own; its question is known while it is parsed.

        Of several prompts that are refused each is asked by itself: one of them is to blame.
        """
        keys = kwargs.get("cache_keys") or [None] * len(messages)
        self._asked.set(keys[0] if kwargs.get("generate") and keys[0] else (None, None))
        try:
            return await super().amodel_call(session, sem, messages, **kwargs)  # type: ignore[misc]
        except ClientResponseError as error:
            if error.status != _REFUSED_STATUS:
                raise
        if len(messages) == 1:
            return [self._refused(keys[0], is_text=bool(kwargs.get("generate")))]
        lengths = kwargs.get("ctxlens") or [None] * len(messages)
        found: list[Any] = []
        for message, key, length in zip(messages, keys, lengths, strict=True):
            own = {"cache_keys": [key] if key else None, "ctxlens": [length]}
            found += await _Recording.amodel_call(self, session, sem, [message], **{**kwargs, **own})
        return found

    def _refused(self, question: Any, *, is_text: bool) -> Any:
        """What stands in place of the answer: a text that is missing, or no number."""
        self.settings.refusals.add(question, REFUSAL.get())
        if not is_text:
            return REFUSED
        context, gen_kwargs = question or (None, None)
        self.settings.generations.add(context, gen_kwargs, Answer("", "", "null", None))
        return LMEVAL_MODEL_NONE_ANSWER_PLACEHOLDER

    def parse_generations(self, outputs: Any, **_: Any) -> list[str | None]:
        """The answers after the thoughts; None (lm-eval's own placeholder) where there was no text at all."""
        context, gen_kwargs = self._asked.get((None, None))
        stops = _stops(gen_kwargs or {})
        texts: list[str | None] = []
        for output in outputs if isinstance(outputs, list) else [outputs]:
            used = (output.get("usage") or {}).get("completion_tokens")
            choice = min(output["choices"], key=lambda one: int(one["index"]))  # lm-eval scores one answer a prompt
            answer = split_answer(choice, self.settings.thinking, used)
            text = cut_at_stops(answer.text, stops)
            self.settings.generations.add(
                context, gen_kwargs, Answer(text, answer.thought, answer.outcome, answer.num_tokens)
            )
            texts.append(None if answer.outcome == "null" else text)
        return texts

    def _limited(self, payload: dict[str, Any], gen_kwargs: Mapping[str, Any], prompt_bytes: int) -> dict[str, Any]:
        """`payload` with our limit, sampling and stop strings in the place of lm-eval's."""
        settings = self.settings
        task_limit = gen_kwargs.get("max_gen_toks") or gen_kwargs.get("max_tokens")
        length = settings.served.max_model_len
        limit = token_limit(settings.request, settings.thinking, task_limit, prompt_bytes, length)
        body = {**payload, "max_tokens": limit, "stop": list(_stops(gen_kwargs))[:_MOST_STOPS]}
        if settings.thinking.on:
            # Stop strings would end the thought, and a task's greedy sampling makes Qwen3 repeat itself: what the
            # model's card recommends stands in its generation_config.json, which servers take where nothing is said.
            body["stop"] = None
            body.update({name: settings.request.gen_kwargs.get(name) for name in _SAMPLING})
        return {name: value for name, value in body.items() if value is not None}


class ChatClient(_Recording, LocalChatCompletion):  # type: ignore[misc]
    """Chat completions: generated answers only."""

    def _create_payload(
        self, messages: Any, generate: bool = False, gen_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        given = dict(gen_kwargs or {})
        payload = super()._create_payload(messages, generate=generate, gen_kwargs=dict(given), **kwargs)
        payload = self._limited(payload, given, len(json.dumps(messages).encode()))
        thinking = self.settings.thinking
        if thinking.template_kwargs is not None:
            payload["chat_template_kwargs"] = dict(thinking.template_kwargs)
        if self.settings.request.thinking_budget is not None:
            payload["thinking_token_budget"] = self.settings.request.thinking_budget
        return payload


class CompletionClient(_Recording, LocalCompletionsAPI):  # type: ignore[misc]
    """Completions: log-likelihoods, several prompts a request, and generated answers to plain prompts."""

    def _loglikelihood_tokens(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        """Generated answers go one a request: servers tell the tokens of a request, which are to be an answer's."""
        self._batch_size = PROMPTS_A_REQUEST
        try:
            found: list[tuple[float, bool]] = super()._loglikelihood_tokens(requests, **kwargs)
        finally:
            self._batch_size = 1
        return found

    def _create_payload(
        self, messages: Any, generate: bool = False, gen_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        given = dict(gen_kwargs or {})
        payload: dict[str, Any] = super()._create_payload(messages, generate=generate, gen_kwargs=dict(given), **kwargs)
        if not generate:
            return payload
        size = len(messages[0]) if isinstance(messages, list) else len(messages.encode())
        stop = payload["stop"]  # with the end of text, which lm-eval adds
        return {**self._limited(payload, given, size), "stop": stop}

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> Any:
        """With the thought left out where the template has a switch: a choice is no thought."""
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **(self.settings.thinking.template_kwargs or {}),
        )


def _but_for_unawaited(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not context["message"].endswith("exception was never retrieved"):
        loop.default_exception_handler(context)


def _stops(gen_kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    until = gen_kwargs.get("until") or ()
    return (until,) if isinstance(until, str) else tuple(until)
