"""Follows one answer through its grammar: which tokens may come next.

The mask of the next token is computed by a thread as soon as the one before is drawn, while the model's forward runs;
the sampler takes it when the logits are there. llguidance lets go of the interpreter, so the two do not hold each other
up. An answer whose masks are expensive fails after `_MAX_EXPENSIVE_S` of a core: the step that waits is everybody's.
"""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

from qserve.model.failures import SequenceFailed

__all__ = ["Guidance", "Guide"]

_MAX_EXPENSIVE_S = 2.0
# Of a core; usual masks take 0.1 ms, and a forward hides as much.
_CHEAP_S = 0.005
# For a machine that computes nothing at all for a while.
_MAX_WAIT_S = 60.0
_POOL = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "grammar-masks")


@dataclass(frozen=True, eq=False)
class Guide:
    """What an answer must follow.

    Attributes:
        matcher: llguidance's, at its beginning; copied for each answer.
        begins: `answer` or `tool_call`, as `qserve.engine.grammar.spec` says.
        only_one: the answer ends after the first call.
        call_ids: the tokens of `<tool_call>`.
        thought: where the answer begins; `none`: the model knows no thoughts.
        think_ids: the tokens of `<think>` and of `</think>`.
    """

    matcher: Any
    begins: Literal["answer", "tool_call"] = "answer"
    only_one: bool = False
    call_ids: tuple[int, ...] = ()
    thought: Literal["open", "closed", "unknown", "none"] = "none"
    think_ids: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


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


class Guidance:
    """The state of one answer. Belongs to the thread that generates."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self._recent: deque[int] = deque(maxlen=max(1, len(guide.call_ids), len(guide.think_ids[1])))
        self._matcher: Any = None
        self._next: Future[_Next] | None = None
        self._expensive_s = 0.0
        self._forced: deque[int] = deque()
        self._may_think = guide.begins == "answer" and guide.thought == "unknown" and len(guide.think_ids[0]) > 0
        self._waits_for = guide.call_ids if guide.begins == "tool_call" else guide.think_ids[1]
        if guide.begins == "answer" and guide.thought != "open":
            self._begin()

    @property
    def is_active(self) -> bool:
        """Whether the next token is not free: the grammar binds it, or it is one of a thought before the grammar."""
        return self._matcher is not None or self._guide.begins == "answer"

    @property
    def forced(self) -> int | None:
        """What must come next."""
        return self._forced[0] if self._forced else None

    @property
    def instead_of_ends(self) -> int | None:
        """What is taken in place of a token that ends the answer: it does not end in the thought before its structure.

        None: that token.
        """
        if self._matcher is not None or self._guide.begins != "answer" or self._forced:
            return None
        return self._guide.think_ids[1][0]

    def instead_of(self, token_id: int, ends: frozenset[int]) -> int:
        """The token to take where `token_id` was drawn (`instead_of_ends`)."""
        instead = self.instead_of_ends
        if instead is None or token_id not in ends:
            return token_id
        self._forced.extend(self._guide.think_ids[1])
        return instead

    def allowed(self) -> bytes | None:
        """Which tokens may come next, one bit a token, lowest first; None: all.

        Raises SequenceFailed where the grammar can't go on.
        """
        if self._next is None:
            return None
        following = self._taken(self._next)
        if following.is_over and self._guide.begins == "tool_call" and not self._guide.only_one:
            self._matcher = self._next = None
            return None
        if not self._may_think:
            return following.mask
        mask, token_id = bytearray(following.mask), self._guide.think_ids[0][0]
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
        elif may_think and token_id == self._guide.think_ids[0][0]:
            self._matcher = self._next = None
        else:
            if self._next is not None:  # a matcher is one thread's at a time; who draws has waited for it already
                wait([self._next], _MAX_WAIT_S)
            self._next = _POOL.submit(_advance, self._matcher, token_id)

    def _begin(self) -> None:
        self._recent.clear()
        self._matcher = self._guide.matcher.deep_copy()
        self._next = _POOL.submit(_advance, self._matcher, None)

    def _taken(self, pending: Future[_Next]) -> _Next:
        following = pending.result(_MAX_WAIT_S)
        self._expensive_s += max(0.0, following.cpu_s - _CHEAP_S)
        if self._expensive_s > _MAX_EXPENSIVE_S:
            raise GrammarFailed("this answer's structure takes too long to follow; make it simpler")
        if following.error:
            raise GrammarFailed(f"this answer's structure can't be followed: {following.error.splitlines()[0][:300]}")
        return following


def _advance(matcher: Any, token_id: int | None) -> _Next:
    began_s = time.thread_time()
    if token_id is not None:
        matcher.consume_token(token_id)
    is_over = matcher.is_stopped()
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    error = (matcher.get_error() or "it does not allow what was drawn") if matcher.is_error() else ""
    return _Next(mask, is_over, error, time.thread_time() - began_s)
