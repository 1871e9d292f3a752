"""A grammar whose masks come when a test lets them: what a matcher of llguidance's does, with a fault."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from qserve.engines.transformers.worker.grammar.matcher import Grammar
from qserve.engines.transformers.worker.sampling.grammar_state import AnswerGrammar

_VOCAB = 1 << 18
_EVEN, _ODD = (np.packbits(np.arange(_VOCAB) % 2 == rest, bitorder="little").tobytes() for rest in (0, 1))


@dataclass
class Gate:
    """Masks after `num_before` tokens wait until it is `open`."""

    num_before: int
    open: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)


@dataclass
class GatedMatcher:
    """Allows even tokens and odd ones in turns."""

    gate: Gate
    num_seen: int = 0

    def deep_copy(self) -> GatedMatcher:
        return GatedMatcher(self.gate, self.num_seen)

    def consume_token(self, token_id: int) -> None:
        assert token_id % 2 == self.num_seen % 2, "the mask was not laid on"
        self.num_seen += 1

    def is_stopped(self) -> bool:
        return False

    def is_error(self) -> bool:
        return False

    def compute_bitmask(self) -> bytes:
        if self.num_seen >= self.gate.num_before:
            self.gate.reached.set()
            assert self.gate.open.wait(60)
        return _ODD if self.num_seen % 2 else _EVEN


def gated(num_before: int, *, is_open: bool = False) -> tuple[AnswerGrammar, Gate]:
    """A grammar, and what holds its masks up."""
    gate = Gate(num_before)
    if is_open:
        gate.open.set()
    return AnswerGrammar(Grammar(GatedMatcher(gate))), gate
