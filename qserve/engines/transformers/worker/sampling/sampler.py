"""What one sequence brings to a draw: its parameters, what it has drawn, and what its grammar and thoughts bind.

Nothing here is a tensor: `batch` draws for all sequences at once.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Sequence as SequenceOf
from concurrent.futures import wait

import numpy as np

from qserve.engines.transformers.worker.sampling.grammar_state import MAX_WAIT_S, GrammarState
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.thought_budget import Thought

__all__ = ["SequenceSampler", "Uniforms"]

_BLOCK = 64
# Numbers that Philox 4x64 makes of one counter.
_PER_COUNTER = 4
# So that a share of a sum never reaches the sum, whatever is rounded.
_BELOW_ONE = 1.0 - 2.0**-40
_serials = itertools.count()


class Uniforms:
    """Numbers in [0, 1) by Philox, whose key is the seed and whose counter is the position."""

    def __init__(self, seed: int | None) -> None:
        """None: a seed that nobody knows."""
        self._key = secrets.randbits(64) if seed is None else seed % 2**64
        self._block = -1
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """The number of a position, the same at every call."""
        block, index = divmod(position, _BLOCK)
        if block != self._block:
            philox = np.random.Philox(key=self._key, counter=block * (_BLOCK // _PER_COUNTER))
            numbers = np.random.Generator(philox).random(_BLOCK)
            self._block, self._numbers = block, np.minimum(numbers, _BELOW_ONE).tolist()
        return self._numbers[index]


class SequenceSampler:
    """The sampler's state of one sequence; belongs to the thread that generates.

    Attributes:
        params: what was asked.
        prompt_ids: the tokens before the answer.
        drawn: the tokens of the answer so far, in order.
        serial: of no other sampler of this process.
        was_likeliest: the token before was the likeliest there was, whatever its grammar forbade.
        is_free: nothing ever binds its tokens: no grammar, no budget of a thought, and none are replayed.
        takes_as_drawn: it is, and nothing but the token is asked of a draw.
        is_always_plain: it `is_plain_greedy` at each of its tokens.
        uniforms: its random numbers; None where it is greedy.
    """

    def __init__(self, params: SamplingParams, prompt_ids: SequenceOf[int], replayed: SequenceOf[int] = ()) -> None:
        """`replayed`: the first tokens of the answer, which were drawn before and are taken in place of draws."""
        self.params = params
        self.prompt_ids = prompt_ids
        self.drawn: list[int] = []
        self.serial = next(_serials)
        self._is_plain_greedy = params.is_plain_greedy
        self.uniforms = None if params.is_greedy else Uniforms(params.seed)
        self._thought = Thought(params.thought_budget, prompt_ids) if params.thought_budget else None
        self._grammar_state = GrammarState(params.grammar) if params.grammar else None
        self.was_likeliest = True
        self._replayed = deque(replayed)
        self.is_free = self._thought is None and self._grammar_state is None and not replayed
        self.takes_as_drawn = self.is_free and params.num_logprobs is None
        self.is_always_plain = self.is_free and self._is_plain_greedy and params.min_tokens == 0

    def fresh(self) -> SequenceSampler:
        """One that has drawn nothing yet."""
        return SequenceSampler(self.params, self.prompt_ids)

    @property
    def num_sampled(self) -> int:
        """Tokens drawn so far."""
        return len(self.drawn)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether an argmax over the raw row is all there is to do for the next token."""
        if not self.takes_likeliest:
            return False
        if self._grammar_state is not None and self._grammar_state.is_active:
            return False
        return self.forced is None

    @property
    def takes_likeliest(self) -> bool:
        """Whether the next token is the likeliest of those that its grammar allows, and nothing else is asked of it."""
        return self._is_plain_greedy and not self.is_too_short

    @property
    def is_too_short(self) -> bool:
        """Whether `min_tokens` are not drawn yet: no token may end the answer."""
        return len(self.drawn) < self.params.min_tokens

    @property
    def forced(self) -> int | None:
        """The next token, where it is not drawn."""
        if self._replayed:
            return self._replayed[0]
        forced = self._thought.forced if self._thought is not None else None
        return self._grammar_state.forced if forced is None and self._grammar_state is not None else forced

    @property
    def num_wanted(self) -> int | None:
        """How many of the largest logits decide the next token; None: all of them may, or are told."""
        params = self.params
        if params.num_logprobs is not None or params.is_penalised or params.logit_bias or self.is_too_short:
            return None
        if self._grammar_state is not None:
            return None
        if params.is_greedy:
            return 1
        return params.top_k if params.top_k > 0 else None

    @property
    def num_wanted_first(self) -> int | None:
        """`num_wanted` where all logits can be had afterwards: a grammar mostly allows the likeliest token.

        But not in the middle of a part that the structure dictates.
        """
        if self._grammar_state is None or not self.takes_likeliest:
            return self.num_wanted
        return 1 if self.was_likeliest else None

    @property
    def grammar_state(self) -> GrammarState | None:
        """What its grammar binds."""
        return self._grammar_state

    @property
    def is_ready(self) -> bool:
        """Whether its next token can be drawn without waiting for a mask."""
        return self._grammar_state is None or self._grammar_state.is_ready

    def wait(self) -> None:
        """Until it is ready."""
        if self._grammar_state is not None and self._grammar_state.pending is not None:
            wait([self._grammar_state.pending], MAX_WAIT_S)

    def allowed(self) -> bytes | None:
        """Which tokens the grammar allows next, one bit a token, lowest first; None: all.

        Raises SequenceFailed where the grammar can't go on.
        """
        return self._grammar_state.allowed() if self._grammar_state is not None else None

    def instead_of_ends(self) -> int | None:
        """What is taken where a token was drawn that ends the answer; None: that token."""
        return self._grammar_state.instead_of_ends if self._grammar_state is not None else None

    def take(self, token_id: int) -> int:
        """Record what was drawn; returns what it became (`instead_of_ends`)."""
        if self.is_free:
            self.drawn.append(token_id)
            return token_id
        if self._grammar_state is not None and self.forced is None:
            token_id = self._grammar_state.instead_of(token_id, self.params.stop_token_ids)
        self.record(token_id)
        return token_id

    def record(self, token_id: int) -> None:
        """Take in the next token."""
        if self._replayed:
            self._replayed.popleft()
            if self._grammar_state is not None and self._grammar_state.forced is None:
                self._grammar_state.allowed()  # as before a draw: it may end what the grammar binds
        self.drawn.append(token_id)
        if self._thought is not None:
            self._thought.see(token_id)
        if self._grammar_state is not None:
            self._grammar_state.see(token_id)
