"""Several processes that rules run in, shared by all requests: one response at a time of each, in turns."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from qserve.reward.rules.process import ITEM_S, RuleProcess, Verdict
from qserve.reward.rules.rules import Rule
from qserve.worker.turns import Turns

__all__ = ["RulePool"]

_FEWEST, _MOST = 3, 5


@dataclass(eq=False)
class _Item:
    client: Hashable
    request: Hashable
    rule: int
    pair: tuple[str, str]
    verdict: asyncio.Future[Verdict]


class RulePool:
    """For one event loop. Processes start when they are wanted; the last place is for a client that holds no other."""

    def __init__(self, rules: Sequence[Rule], item_s: float = ITEM_S) -> None:
        """`item_s`: what one response may take."""
        number = max(_FEWEST, min(_MOST, 1 + len(os.sched_getaffinity(0))))
        self._processes = [RuleProcess(rules, item_s) for _ in range(number)]
        self._idle = list(reversed(self._processes))
        self._threads = ThreadPoolExecutor(number, "rules")
        self._turns: Turns[_Item] = Turns()
        self._running: set[asyncio.Task[None]] = set()

    async def verdicts(
        self, client: Hashable, request: Hashable, rule: int, pairs: Sequence[tuple[str, str]]
    ) -> list[Verdict]:
        """Of each (response, reference) by the rule of that number. Cancelled, what of it waits is dropped and what of
        it runs is ended."""
        loop = asyncio.get_running_loop()
        items = [_Item(client, request, rule, pair, loop.create_future()) for pair in pairs]
        self._turns.put(client, request, items)
        self._give_turns()
        try:
            return [await item.verdict for item in items]
        finally:
            for item in items:
                item.verdict.cancel()
            self._turns.drop(lambda item: item.verdict.done())

    def start(self) -> None:
        """Start the first process, so that no request waits for it. Raises OSError where it ends."""
        self._processes[0].start()

    def close(self) -> None:
        """End the processes, and whatever runs in them."""
        for process in self._processes:
            process.interrupt()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.close()

    def _give_turns(self) -> None:
        while self._idle and (item := self._turns.take(of_idle=len(self._idle) == 1)) is not None:
            task = asyncio.create_task(self._run(self._idle.pop(), item))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, process: RuleProcess, item: _Item) -> None:
        loop, began_s = asyncio.get_running_loop(), time.monotonic()
        working = loop.run_in_executor(self._threads, process.verdict, item.rule, *item.pair)
        try:
            await asyncio.wait([working, item.verdict], return_when=asyncio.FIRST_COMPLETED)
            if item.verdict.done():  # nobody waits for it any more
                process.interrupt()
                await asyncio.gather(working, return_exceptions=True)
                await loop.run_in_executor(self._threads, process.close)
            else:
                item.verdict.set_result(await working)
        except OSError as error:
            item.verdict.set_exception(error)
        finally:
            self._turns.done(item.client, item.request, time.monotonic() - began_s)
            self._idle.append(process)
            self._give_turns()
