"""Grammars made ready once and kept, with bounds of time and memory that hold whatever a client asks for."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tokenizers import Tokenizer

from qserve.engines.transformers.worker.grammar.matcher import Grammar, matcher_of
from qserve.engines.transformers.worker.grammar.refusals import TOO_MUCH, refusal
from qserve.engines.transformers.worker.grammar.trials import Trials
from qserve.engines.transformers.worker.grammar.vocabulary import token_table, vocabulary_of
from qserve.model.failures import PromptRefused

__all__ = ["GrammarTooComplex", "Grammars"]

_MAX_KEPT, _MAX_KEPT_BYTES = 64, 128 * 1024 * 1024
_MAX_REFUSALS = 256
# What took less at its trial never waits for what took more.
_QUICK_S = 0.05
_NICE = 10


class GrammarTooComplex(PromptRefused):
    """A grammar that can't be followed within bounds, or that no text fulfils."""

    def __init__(self, why: str, param: str) -> None:
        """`why`: a sentence; `param`: the field that asks for it."""
        super().__init__(why, "invalid_grammar", param)


class Grammars:
    """Ready grammars by their text, the latest kept. All methods belong to one event loop.

    Each is tried in another process first (`trial`), in turns of clients; what fails there is never compiled here.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        """Takes a second for 152,000 tokens, in which no other thread runs."""
        vocabulary = vocabulary_of(tokenizer, vocab_size, eos_token_ids)
        self._tokens = token_table(tokenizer, vocabulary)
        self._trials = Trials(vocabulary)
        self._ready: OrderedDict[bytes, Grammar] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._making: dict[tuple[bytes, str], _Making] = {}
        # Behind everything else, and small ones beside large ones.
        self._quick, self._slow = (
            ThreadPoolExecutor(1, f"{name}-grammars", initializer=_be_nice) for name in ("quick", "slow")
        )

    def start(self) -> None:
        """Start the process that tries them, so that the first does not wait for it."""
        self._trials.start()

    def stop(self) -> None:
        """End its threads and its process."""
        self._trials.stop()
        for threads in (self._quick, self._slow):
            threads.shutdown(wait=False, cancel_futures=True)

    async def ready(self, grammar: str, param: str = "response_format", client: str = "") -> Grammar:
        """The grammar; `client`: whose turn it takes. Raises GrammarTooComplex, of the field `param`, or TrialFailed.

        A caller that is cancelled ends what is done for it, unless another of the same client waits for the same.
        """
        key = hashlib.sha256(grammar.encode()).digest()
        if key in self._ready:
            self._ready.move_to_end(key)
            return self._ready[key]
        made = self._refused.get(key) or await self._made(key, grammar, client)
        if isinstance(made, str):
            raise GrammarTooComplex(made, param)
        return made

    async def _made(self, key: bytes, grammar: str, client: str) -> Grammar | str:
        making = self._making.get((key, client))
        if making is None:
            making = self._making[key, client] = _Making(asyncio.ensure_future(self._make(key, grammar, client)))
        making.num_waiting += 1
        try:
            return await asyncio.shield(making.task)
        finally:
            making.num_waiting -= 1
            if not making.num_waiting:
                making.task.cancel()
                del self._making[key, client]

    async def _make(self, key: bytes, grammar: str, client: str) -> Grammar | str:
        """It, or why it can't be."""
        trial = await self._trials.of(grammar, client)
        if trial is None:
            return self._refuse(key, TOO_MUCH)
        if trial.error:
            return self._refuse(key, refusal(trial.error))
        threads = self._quick if trial.cpu_s < _QUICK_S else self._slow
        loop = asyncio.get_running_loop()
        matcher, error = await loop.run_in_executor(threads, matcher_of, self._tokens, grammar)
        return self._refuse(key, refusal(error)) if error else self._keep(key, Grammar(matcher, trial.num_bytes))

    def _refuse(self, key: bytes, why: str) -> str:
        self._refused[key] = why
        while len(self._refused) > _MAX_REFUSALS:
            self._refused.popitem(last=False)
        return why

    def _keep(self, key: bytes, grammar: Grammar) -> Grammar:
        self._ready[key] = grammar
        while len(self._ready) > 1 and (
            len(self._ready) > _MAX_KEPT or sum(one.most_bytes for one in self._ready.values()) > _MAX_KEPT_BYTES
        ):
            self._ready.popitem(last=False)
        return grammar


@dataclass
class _Making:
    """One that is on its way. `num_waiting`: callers."""

    task: asyncio.Task[Grammar | str]
    num_waiting: int = 0


def _be_nice() -> None:
    """Linux counts niceness by thread: streams go first."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
