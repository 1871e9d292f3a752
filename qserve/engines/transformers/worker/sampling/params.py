"""What a request asks of the sampler, and what it is told of a token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar
from qserve.engines.transformers.worker.sampling.thought_budget import ThoughtBudget

__all__ = ["LOWEST_LOGPROB", "SamplingParams", "TokenChoice"]

_GREEDY_BELOW = 1e-5
LOWEST_LOGPROB = -9999.0
"""What OpenAI's clients and lm-eval expect instead of minus infinity, which JSON cannot say."""


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks of the sampler. Zero temperature is greedy.

    `num_logprobs`: None for none at all, 0 for the chosen token's, N for the N likeliest beside it; they are those of
    the model's own distribution, before penalties and temperature.
    `stop_token_ids` end the sequence; before `min_tokens` they can't be drawn. `thought_budget` ends a thought, the
    answer follows `grammar`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None
    thought_budget: ThoughtBudget | None = None
    grammar: AnswerGrammar | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _GREEDY_BELOW

    @property
    def is_penalised(self) -> bool:
        """Whether what a token gets depends on the tokens before it."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether an argmax over the raw row is all there is to do where nothing binds the answer."""
        return self.is_greedy and self.num_logprobs is None and not self.is_penalised and not self.logit_bias


class TokenChoice(NamedTuple):
    """A chosen token. `logprob` and `top` (likeliest first) are filled as `num_logprobs` asks."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
