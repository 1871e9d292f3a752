"""Follows one answer through its grammar: which tokens may come next.

The mask of the next token is computed by a thread as soon as the one before is drawn, while the model's forward runs;
the sampler takes it when the logits are there. llguidance lets go of the interpreter, so the two do not hold each other
up. Where a mask is not there in time its sequence sits out and the others go on (`late`); an answer whose masks are
expensive fails after `_MAX_EXPENSIVE_S` of a core.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from qserve.engines.transformers.worker.grammar.matcher import Grammar
from qserve.engines.transformers.worker.sampling.mask_threads import CHEAP_S, MaskQueue, MaskThreads
from qserve.model.failures import SequenceFailed

__all__ = ["MAX_WAIT_S", "THREADS", "AnswerGrammar", "GrammarState"]

_MAX_EXPENSIVE_S = 2.0
MAX_WAIT_S = 60.0
"""For a mask, on a machine that computes nothing at all for a while."""
# What a request may hold steps up in all at first, and what each mask adds to it, up to as much again.
_PATIENCE_S, _MORE_PATIENCE_S = 0.02, 0.0002
_NUM_CORES = os.cpu_count() or 1
# Most cores are left to the model.
THREADS = MaskThreads(num_quick=min(4, max(1, _NUM_CORES // 2)), num_slow=min(2, max(1, _NUM_CORES // 4)))


@dataclass(frozen=True, eq=False)
class AnswerGrammar:
    """What an answer must follow.

    Attributes:
        compiled: its matcher is copied for each answer, and it is told of each token that follows it.
        begins: `answer` or `tool_call`, as `qserve.grammar.spec` says.
        only_one: the answer ends after the first call.
        call_ids: the tokens of `<tool_call>`.
        thought: where the answer begins; `none`: the model knows no thoughts.
        think_ids: the tokens of `<think>` and of `</think>`.
        queue: its answers' masks.
    """

    compiled: Grammar
    begins: Literal["answer", "tool_call"] = "answer"
    only_one: bool = False
    call_ids: tuple[int, ...] = ()
    thought: Literal["open", "closed", "unknown", "none"] = "none"
    think_ids: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    queue: MaskQueue = field(default_factory=lambda: MaskQueue(_PATIENCE_S))

    @cached_property
    def first(self) -> Future[_Next]:
        """The mask of the first token: once for all answers."""
        return THREADS.submit(self.queue, partial(_advance, self.compiled.matcher.deep_copy(), None))


@dataclass(frozen=True)
class _Next:
    """After a token: the mask of the next, one bit a token, or why there is none."""

    mask: bytes
    is_over: bool
    error: str
    cpu_s: float


class GrammarFailed(SequenceFailed):
    """The grammar can't be followed any further within its bounds."""

    code = "grammar_too_complex"


class GrammarState:
    """The state of one answer. Belongs to the thread that generates.

    Attributes:
        is_missed: a step has waited for the mask of its next token already.
    """

    def __init__(self, grammar: AnswerGrammar) -> None:
        self._grammar = grammar
        self._recent: deque[int] = deque(maxlen=max(1, len(grammar.call_ids), len(grammar.think_ids[1])))
        self._matcher: Any = None
        self._next: Future[_Next] | None = None
        self._expensive_s = 0.0
        self._due_s = 0.0
        self.is_missed = False
        self._forced: deque[int] = deque()
        self._may_think = grammar.begins == "answer" and grammar.thought == "unknown" and len(grammar.think_ids[0]) > 0
        self._waits_for = grammar.call_ids if grammar.begins == "tool_call" else grammar.think_ids[1]
        if grammar.begins == "answer" and grammar.thought != "open":
            self._begin()

    @property
    def is_active(self) -> bool:
        """Whether the next token is not free: the grammar binds it, or it is one of a thought before the grammar."""
        return self._matcher is not None or self._grammar.begins == "answer"

    @property
    def is_ready(self) -> bool:
        """Whether `allowed` knows an answer without waiting: a mask, or that none will come."""
        return self._next is None or self._next.done() or time.monotonic() > self._due_s

    @property
    def queue(self) -> MaskQueue:
        """Of the request that it belongs to."""
        return self._grammar.queue

    @property
    def pending(self) -> Future[_Next] | None:
        """The mask that is computed; None where all tokens are allowed."""
        return self._next

    @property
    def forced(self) -> int | None:
        """What must come next."""
        return self._forced[0] if self._forced else None

    @property
    def instead_of_ends(self) -> int | None:
        """What is taken in place of a token that ends the answer: it does not end in the thought before its structure.

        None: that token.
        """
        if self._matcher is not None or self._grammar.begins != "answer" or self._forced:
            return None
        return self._grammar.think_ids[1][0]

    def instead_of(self, token_id: int, ends: frozenset[int]) -> int:
        """The token to take where `token_id` was drawn (`instead_of_ends`)."""
        instead = self.instead_of_ends
        if instead is None or token_id not in ends:
            return token_id
        self._forced.extend(self._grammar.think_ids[1])
        return instead

    def allowed(self) -> bytes | None:
        """Which tokens may come next, one bit a token, lowest first; None: all. Waits where it is not `is_ready`.

        Raises SequenceFailed where the grammar can't go on.
        """
        if self._next is None:
            return None
        following = self._taken(self._next)
        if following.is_over and self._grammar.begins == "tool_call" and not self._grammar.only_one:
            self._matcher = self._next = None
            return None
        if not self._may_think:
            return following.mask
        mask, token_id = bytearray(following.mask), self._grammar.think_ids[0][0]
        mask[token_id // 8] |= 1 << token_id % 8
        return bytes(mask)

    def see(self, token_id: int) -> None:
        """Take in the token that was drawn."""
        may_think, self._may_think = self._may_think, False
        if self._forced:
            self._forced.popleft()
        if self._matcher is None:
            self._recent.append(token_id)
            if self._waits_for and tuple(self._recent)[-len(self._waits_for) :] == self._waits_for:
                self._begin()
        elif may_think and token_id == self._grammar.think_ids[0][0]:
            self._matcher = self._next = None
        else:
            self._grammar.compiled.num_tokens += 1
            if self._next is not None:  # a matcher is one thread's at a time; who draws has its mask already
                wait([self._next], MAX_WAIT_S)
            self._await(THREADS.submit(self.queue, partial(_advance, self._matcher, token_id)))

    def _begin(self) -> None:
        self._recent.clear()
        self._matcher = self._grammar.compiled.matcher.deep_copy()
        self._await(self._grammar.first)

    def _await(self, following: Future[_Next]) -> None:
        self._next, self._due_s, self.is_missed = following, time.monotonic() + MAX_WAIT_S, False
        self.queue.patience_s = min(_PATIENCE_S, self.queue.patience_s + _MORE_PATIENCE_S)

    def _taken(self, pending: Future[_Next]) -> _Next:
        try:
            following = pending.result(max(0.0, self._due_s - time.monotonic()))
        except TimeoutError:
            raise GrammarFailed(f"the machine has no time for this answer's structure: {MAX_WAIT_S:.0f} s") from None
        self._expensive_s += max(0.0, following.cpu_s - CHEAP_S)
        if self._expensive_s > _MAX_EXPENSIVE_S:
            raise GrammarFailed("this answer's structure takes too long to follow; make it simpler")
        if following.error:
            raise GrammarFailed(f"this answer's structure can't be followed: {following.error.splitlines()[0][:300]}")
        return following


def _advance(matcher: Any, token_id: int | None) -> tuple[_Next, float]:
    """What comes after a token (None: first), and what that has taken."""
    began_s = time.thread_time()
    if token_id is not None:
        matcher.consume_token(token_id)
    is_over = matcher.is_stopped()
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    error = (matcher.get_error() or "it does not allow the sampled token") if matcher.is_error() else ""
    cpu_s = time.thread_time() - began_s
    return _Next(mask, is_over, error, cpu_s), cpu_s
