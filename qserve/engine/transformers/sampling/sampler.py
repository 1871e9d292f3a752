"""From one row of logits to one token, as asked: penalties, temperature, top-k, top-p, min-p, seed, logprobs.

A sequence samples from its own row with its own random generator, so what it draws does not depend on which other
requests share the batch, nor on when they came.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property

import torch

from qserve.engine.transformers.sampling.guidance import Guidance, Guide
from qserve.engine.transformers.sampling.thought_budget import Thought, ThoughtBudget

__all__ = ["SamplingParams", "SequenceSampler", "TokenChoice", "top_logprobs"]

# Most nuclei hold far fewer tokens than this; only a flatter distribution pays for a sort of the whole vocabulary.
_NUCLEUS_GUESS = 1024
_GREEDY_BELOW = 1e-5
# What OpenAI's clients and lm-eval expect instead of minus infinity, which JSON cannot say.
_LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True)
class SamplingParams:
    """What a request asks of the sampler. Zero temperature is greedy.

    `num_logprobs`: None for none at all, 0 for the chosen token's, N for the N likeliest beside it; they are those of
    the model's own distribution, before penalties and temperature.
    `stop_token_ids` end the sequence; before `min_tokens` they can't be drawn. `thought_budget` ends a thought, `guide`
    binds the answer to a grammar.
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
    guide: Guide | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _GREEDY_BELOW


@dataclass(frozen=True)
class TokenChoice:
    """A chosen token. `logprob` and `top` (likeliest first) are filled as `num_logprobs` asks."""

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def top_logprobs(logprobs: torch.Tensor, num_top: int) -> list[tuple[tuple[int, float], ...]]:
    """The `num_top` likeliest (token, logprob) of each row of `logprobs` [rows, vocab]; minus infinity reads -9999."""
    values, ids = logprobs.topk(num_top, dim=-1)
    values = values.clamp(min=_LOWEST_LOGPROB)
    return [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


class SequenceSampler:
    """The sampler of one sequence; it remembers what it drew, for penalties and `min_tokens`."""

    def __init__(self, params: SamplingParams, prompt_ids: SequenceOf[int], device: torch.device) -> None:
        self.params = params
        self._device = device
        self._drawn: Counter[int] = Counter()
        self._prompt_ids = prompt_ids
        self._thought = Thought(params.thought_budget, prompt_ids) if params.thought_budget else None
        self._guidance = Guidance(params.guide) if params.guide else None

    def fresh(self) -> SequenceSampler:
        """One that has drawn nothing yet."""
        return SequenceSampler(self.params, self._prompt_ids, self._device)

    # Made when they are first wanted, by the thread that generates: what is brought to a card waits for the step that
    # runs there, and a sampler is made on the event loop.

    @cached_property
    def _prompt(self) -> torch.Tensor:
        return torch.tensor(sorted(set(self._prompt_ids)), dtype=torch.long, device=self._device)

    @cached_property
    def _bias(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and what their logits get."""
        bias = self.params.logit_bias
        return (
            torch.tensor(list(bias), dtype=torch.long, device=self._device),
            torch.tensor(list(bias.values()), dtype=torch.float32, device=self._device),
        )

    @cached_property
    def _generator(self) -> torch.Generator:
        generator = torch.Generator(device=self._device)
        if self.params.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.params.seed % 2**63)
        return generator

    @property
    def num_drawn(self) -> int:
        """Tokens drawn so far."""
        return self._drawn.total()

    @property
    def is_plain_greedy(self) -> bool:
        """Whether an argmax over the raw row is all there is to do, so that a whole batch can share one."""
        p = self.params
        penalised = p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0
        return p.is_greedy and p.num_logprobs is None and not penalised and not p.logit_bias and not self._restricted

    @property
    def _restricted(self) -> bool:
        if self._guidance is not None and self._guidance.is_active:
            return True
        return self._too_short or self._forced is not None

    @property
    def _forced(self) -> int | None:
        """The next token, where it is not drawn."""
        forced = self._thought.forced if self._thought is not None else None
        return self._guidance.forced if forced is None and self._guidance is not None else forced

    @property
    def _too_short(self) -> bool:
        return self.num_drawn < self.params.min_tokens

    def choose(self, logits: torch.Tensor) -> TokenChoice:
        """Draw the next token from `logits` [vocab], float32. The row is not changed."""
        forced = self._forced
        token_id = self._chosen(self._bound(self._penalise(logits), logits)) if forced is None else forced
        if self._guidance is not None:
            token_id = self._guidance.instead_of(token_id, self.params.stop_token_ids)
        choice = self._describe(token_id, logits)
        self.record(token_id)
        return choice

    def record(self, token_id: int) -> None:
        """Remember a token that was drawn elsewhere, by an argmax over the batch."""
        self._drawn[token_id] += 1
        if self._thought is not None:
            self._thought.see(token_id)
        if self._guidance is not None:
            self._guidance.see(token_id)

    def _chosen(self, adjusted: torch.Tensor) -> int:
        return int(adjusted.argmax()) if self.params.is_greedy else self._draw(adjusted)

    def _penalise(self, logits: torch.Tensor) -> torch.Tensor:
        """The row after min_tokens, bias and penalties, in vLLM's order: a repetition penalty meets biased logits."""
        params = self.params
        row = logits.clone()
        if params.logit_bias:
            tokens, bias = self._bias
            row[tokens] += bias
        if params.repetition_penalty != 1.0:
            # A token in both is read twice and written twice with the same value.
            seen = torch.cat([self._prompt, self._drawn_ids()])
            values = row[seen]
            row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        if self._drawn and (params.frequency_penalty or params.presence_penalty):
            counts = torch.tensor(list(self._drawn.values()), dtype=row.dtype, device=self._device)
            row[self._drawn_ids()] -= params.frequency_penalty * counts + params.presence_penalty
        if self._too_short:
            row[list(params.stop_token_ids)] = float("-inf")
        return row

    def _bound(self, row: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The row with what the grammar forbids at minus infinity."""
        allowed = self._guidance.allowed(len(row)) if self._guidance is not None else None
        if allowed is None:
            return row
        forbidden = (~allowed).to(self._device, non_blocking=True)
        row.masked_fill_(forbidden, float("-inf"))
        if self._too_short and bool(torch.isneginf(row).all()):
            # The structure is complete before `min_tokens` are there: it can only end.
            return logits.masked_fill(forbidden, float("-inf"))
        return row

    def _drawn_ids(self) -> torch.Tensor:
        return torch.tensor(list(self._drawn), dtype=torch.long, device=self._device)

    def _draw(self, logits: torch.Tensor) -> int:
        scaled = logits / self.params.temperature
        ids, kept = self._truncate(scaled)
        probabilities = torch.softmax(kept, dim=-1)
        # argmax(p / Exp(1)) draws from p, and needs no cumulative sum over the vocabulary.
        noise = torch.empty_like(probabilities).exponential_(generator=self._generator)
        winner = int((probabilities / noise.clamp_min(1e-20)).argmax())
        return winner if ids is None else int(ids[winner])

    def _truncate(self, scaled: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Token ids (None: all of them, in order) and scores that min-p, top-k and top-p leave.

        In vLLM's order: min-p first; top-p counts shares of what the others leave.
        """
        params = self.params
        vocab = scaled.shape[-1]
        use_top_k = 0 < params.top_k < vocab
        if not use_top_k and params.top_p >= 1.0 and params.min_p <= 0.0:
            return None, scaled
        floor = scaled.max() + math.log(params.min_p) if params.min_p > 0.0 else None
        kept, ids = self._likeliest(scaled, params.top_k if use_top_k else vocab, floor)
        if floor is not None:
            kept = kept[: max(1, int((kept >= floor).sum()))]
        if params.top_p < 1.0:
            log_total = torch.logsumexp(kept if use_top_k or floor is not None else scaled, dim=-1)
            cumulative = torch.exp(kept - log_total).cumsum(-1)
            kept = kept[: int((cumulative < params.top_p).sum()) + 1]
        return ids[: len(kept)], kept

    def _likeliest(
        self, scaled: torch.Tensor, num: int, floor: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The `num` largest scores, falling, and their ids; fewer where `floor` or top-p cut before them anyway."""
        if num <= _NUCLEUS_GUESS:
            return scaled.topk(num)
        kept, ids = scaled.topk(_NUCLEUS_GUESS)
        if floor is not None:
            enough = bool(kept[-1] < floor)
        else:
            share = torch.exp(torch.logsumexp(kept, dim=-1) - torch.logsumexp(scaled, dim=-1))
            enough = num == len(scaled) and float(share) >= self.params.top_p
        return (kept, ids) if enough else scaled.topk(num)

    def _describe(self, token_id: int, logits: torch.Tensor) -> TokenChoice:
        num_top = self.params.num_logprobs
        if num_top is None:
            return TokenChoice(token_id)
        logprobs = torch.log_softmax(logits, dim=-1)
        top = top_logprobs(logprobs[None], num_top)[0] if num_top else ()
        return TokenChoice(token_id, max(float(logprobs[token_id]), _LOWEST_LOGPROB), top)
