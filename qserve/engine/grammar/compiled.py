"""Grammars made ready once and kept, with bounds; and which tokens there are for them to choose from.

llguidance (what vLLM calls `guidance`) rather than xgrammar: it compiles nothing over the vocabulary, so that a new
schema costs milliseconds; each of its steps has a limit, so that none explodes; it lets go of the interpreter; and it
refuses the keywords that it can't hold, where xgrammar leaves them out in silence.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from tokenizers import Tokenizer

from qserve.engine.grammar.refusals import refusal
from qserve.engine.prompts.token_text import TokenText
from qserve.model.failures import PromptRefused

__all__ = ["GrammarTooComplex", "Grammars", "token_table"]

_MAX_KEPT = 64
_MAX_KEPT_CHARS = 4 * 1024 * 1024
# The library's own limits, but for the work of a single token, about 50 ms at most, and that of a pattern before the
# first one, half a second in place of three: whoever sends another structure waits for it.
_STEP_MAX_ITEMS, _STEP_LEXER_FUEL, _INITIAL_LEXER_FUEL = 20_000, 100_000, 300_000
_NICE = 10
_NUM_PROBED = 16


class GrammarTooComplex(PromptRefused):
    """A grammar that can't be followed within bounds, or that no text fulfils."""

    def __init__(self, error: str, param: str) -> None:
        """`error`: llguidance's own; `param`: the field that asks for it."""
        super().__init__(refusal(error), "invalid_grammar", param)


class _Vocabulary:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_id: int) -> None:
        text = TokenText(tokenizer)
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.tokens = [text.raw(token_id) for token_id in range(vocab_size)]
        added = tokenizer.get_added_tokens_decoder()
        self.special_token_ids = [token_id for token_id, token in added.items() if token.special]

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode()
        ids: list[int] = self._tokenizer.encode(whole, add_special_tokens=False).ids
        return ids


def token_table(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> LLTokenizer:
    """The vocabulary as a tree of bytes; a second for 152,000 tokens, in which no other thread runs."""
    ends = sorted(eos_token_ids)
    wrapper: Any = TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, ends[0] if ends else 0))
    return LLTokenizer(wrapper, n_vocab=vocab_size, eos_token=ends or None)


class Grammars:
    """Ready grammars by their text, the latest kept. All methods belong to one event loop."""

    def __init__(self, tokens: LLTokenizer) -> None:
        self._tokens = tokens
        self._limits = LLParserLimits(
            step_max_items=_STEP_MAX_ITEMS,
            step_lexer_fuel=_STEP_LEXER_FUEL,
            initial_lexer_fuel=_INITIAL_LEXER_FUEL,
            verbose_errors=False,
        )
        self._ready: OrderedDict[str, LLMatcher] = OrderedDict()
        # One at a time and behind everything else: a large grammar takes half a second.
        self._thread = ThreadPoolExecutor(1, "grammars", initializer=_be_nice)

    async def ready(self, grammar: str, param: str = "response_format") -> LLMatcher:
        """A matcher at its beginning, to be copied for each answer. Raises GrammarTooComplex, of the field `param`."""
        if grammar not in self._ready:
            made = await asyncio.get_running_loop().run_in_executor(self._thread, self._make, grammar, param)
            self._keep(grammar, made)
        self._ready.move_to_end(grammar)
        return self._ready[grammar]

    def stop(self) -> None:
        """End its thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, grammar: str, param: str) -> LLMatcher:
        matcher = LLMatcher(self._tokens, grammar, limits=self._limits, log_level=0)
        probe = matcher.deep_copy()
        # What explodes, or holds no answer at all, does so at its first tokens.
        for _ in range(_NUM_PROBED):
            if not probe.is_error():
                probe.compute_bitmask()
            if probe.is_error():
                raise GrammarTooComplex(probe.get_error(), param)
            if not (forced := probe.compute_ff_tokens()):
                break
            probe.consume_tokens(forced)
        return matcher

    def _keep(self, grammar: str, matcher: LLMatcher) -> None:
        self._ready[grammar] = matcher
        while len(self._ready) > _MAX_KEPT or sum(map(len, self._ready)) > max(_MAX_KEPT_CHARS, len(grammar)):
            self._ready.popitem(last=False)


def _be_nice() -> None:
    """Linux counts niceness by thread: streams go first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
