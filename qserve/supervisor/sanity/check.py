"""The self-test of a chat model: by its loss on bundled texts it tells a model from noise, once its worker is ready.

A checkpoint whose scales or packed weights were misread (vllm#40252) loads and answers, but its text is meaningless.
Its loss shows it: a uniform guess has a loss of ln(vocabulary) nats per token on any text, a confidently wrong model
more (Jensen's inequality: its mean probability of the true token is 1/vocabulary). Random weights were within 0.3 nats
of that. The bundled demo (2 M parameters) has 0.43 of it on consecutive numbers, and more than all of it on English,
which it was not trained on. So the lowest loss of three texts counts, one of them without a language: a model is noise
if it is above three quarters of ln(vocabulary) on each.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qserve.errors import WorkerFailed
from qserve.worker.launch import SendRequest

__all__ = ["LIMIT_S", "NOISE_SHARE", "TEXTS", "Sanity", "check_sanity"]

TEXTS: Mapping[str, str] = {
    "English": "There are seven days in a week and twelve months in a year, and the capital of France is Paris.",
    "Chinese": "一年有十二个月，一个星期有七天，中国的首都是北京。",
    "numbers": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
}
TEXT_NAMES = {"English": "an English sentence", "Chinese": "a Chinese sentence", "numbers": "the numbers 1 to 20"}
_CAUSE = "The checkpoint is damaged or untrained, or its quantization is misread: try another --quant or checkpoint"
NOISE_SHARE = 0.75
"""Of ln(vocabulary): a model that needs more on every text is taken for noise."""
LIMIT_S = 180.0
"""vLLM compiles its log-probabilities at their first use: half a minute on a slow CPU."""


@dataclass(frozen=True)
class Sanity:
    """The result of the check.

    Attributes:
        vocab_size: of the model, in tokens.
        losses: mean nats per token, by text; empty if they are not available.
        why_not: the reason if they are not available.
        is_no_question: the engine has no log-probabilities, which is no fault of the model.
        is_pending: the check is still running.
    """

    vocab_size: int
    losses: Mapping[str, float] = field(default_factory=dict)
    why_not: str = ""
    is_no_question: bool = False
    is_pending: bool = False

    @property
    def noise_loss(self) -> float:
        """The loss of a uniform guess, in nats per token."""
        return math.log(self.vocab_size)

    @property
    def best(self) -> float | None:
        """The lowest of the losses."""
        return min(self.losses.values(), default=None)

    @property
    def is_noise(self) -> bool:
        """Whether no text is predicted better than by chance, or nearly so."""
        return self.best is not None and not self.best < NOISE_SHARE * self.noise_loss

    @property
    def summary(self) -> str:
        """The result in one line."""
        if self.is_pending:
            return "self-test is running; its result follows"
        if self.best is None:
            return f"self-test not possible: {self.why_not}"
        if self.is_noise:
            return f"self-test failed: the model answers noise, {self.figures}. {_CAUSE}"
        return "self-test passed"

    @property
    def figures(self) -> str:
        """The text that was predicted best, which decides; the others may be in a language that the model lacks."""
        text, loss = min(self.losses.items(), key=lambda one: one[1])
        return f"loss {loss:.2f} on {TEXT_NAMES[text]}, {self.noise_loss:.2f} if it guessed (nats per token)"

    def refuse_noise(self, worker: str) -> None:
        """--strict. Raises WorkerFailed for noise, and where the model failed when it was asked.

        An engine without log-probabilities passes, with a note on the screen.
        """
        if self.is_noise or (self.best is None and not self.is_no_question):
            raise WorkerFailed(f"--strict: {worker}: {self.summary}. Without --strict this is a warning")

    @property
    def told(self) -> str:
        """The result with its figures."""
        return self.summary if self.best is None or self.is_noise else f"{self.summary}: {self.figures}"

    def document(self) -> dict[str, Any]:
        """The result for the run store."""
        return {
            "is_noise": self.is_noise,
            "losses": dict(self.losses),
            "noise_loss": self.noise_loss,
            "told": self.told,
        }


async def check_sanity(send: SendRequest, model: str, vocab_size: int) -> Sanity:
    """Request log-probabilities of the bundled texts; never raises for an unexpected answer."""
    body = {"model": model, "prompt": list(TEXTS.values()), "echo": True, "logprobs": 1, "max_tokens": 1}
    try:
        async with asyncio.timeout(LIMIT_S):
            status, answer = await send("POST", "/v1/completions", json.dumps({**body, "temperature": 0}).encode())
    except TimeoutError:
        return Sanity(vocab_size, why_not=f"no answer within {LIMIT_S:g} s")
    if status != 200:
        return Sanity(vocab_size, why_not=_reason(status, answer), is_no_question=400 <= status < 500)
    try:
        choices = sorted(json.loads(answer)["choices"], key=lambda choice: int(choice["index"]))
        losses = [_loss(choice["logprobs"]["token_logprobs"]) for choice in choices]
    except (ValueError, LookupError, TypeError, AttributeError):
        return Sanity(vocab_size, why_not="the engine returns no log-probabilities of prompts", is_no_question=True)
    return Sanity(vocab_size, dict(zip(TEXTS, losses, strict=True)))


def _loss(logprobs: Sequence[float | None]) -> float:
    """Mean nats of the prompt's tokens after the first; the last of `logprobs` is that of the answer."""
    known = [float(one) for one in logprobs[1:-1] if one is not None]
    if len(known) < len(logprobs) - 2 or not known:
        raise ValueError("a token without a log-probability")
    return -math.fsum(known) / len(known)


def _reason(status: int, answer: bytes) -> str:
    try:
        return f"it answered {status}: {str(json.loads(answer)['error']['message'])[:200]}"
    except (ValueError, LookupError, TypeError):
        return f"it answered {status}" if status else "it did not answer"
