"""What requests of named keys take, where a gateway has several processes: the coordinator counts."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from qserve.gateway.keys.book import Ledger
from qserve.gateway.keys.budgets import Spent
from qserve.gateway.processes.channel import Channel

__all__ = ["MemberSpending", "RemoteLedger"]


class RemoteLedger:
    """The `Ledger` of a gateway process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    async def begin(self, name: str, num_tokens: int) -> int:
        number = next(self._numbers)
        try:
            await self._channel.request("spend", name, number, num_tokens)
        except asyncio.CancelledError:  # the client has left
            self.end(name, number, Spent(0, 0))
            raise
        return number

    def end(self, name: str, number: int, spent: Spent) -> None:
        self._channel.notify("spent", name, number, spent.prompt_tokens, spent.generated_tokens)

    async def document(self, name: str | None) -> list[dict[str, Any]]:
        return list(await self._channel.request("usage", name))


class MemberSpending:
    """What one gateway process asks by its `RemoteLedger`; its end ends what it began."""

    def __init__(self, ledger: Ledger | None) -> None:
        """`ledger` None: the gateway has no keys with names, and is not asked."""
        self._ledger = ledger
        self._running: dict[int, tuple[str, int]] = {}
        self._left: set[int] = set()
        self._last = -1

    async def begin(self, name: str, number: int, num_tokens: int) -> None:
        """As `Ledger.begin`; `number` is of the process, one higher each time."""
        self._last = number
        if number in self._left:  # its client left before this message was looked at
            self._left.remove(number)
            return
        self._running[number] = name, await self._of_service().begin(name, num_tokens)

    def end(self, name: str, number: int, prompt_tokens: int, generated_tokens: int) -> None:
        """A request is over."""
        if number in self._running:
            self._of_service().end(name, self._running.pop(number)[1], Spent(prompt_tokens, generated_tokens))
        elif number > self._last:  # it has not begun
            self._left.add(number)

    async def document(self, name: str | None) -> list[dict[str, Any]]:
        return await self._of_service().document(name)

    def leave(self) -> None:
        """The process is gone: nobody will tell what its requests took."""
        for name, number in self._running.values():
            self._of_service().end(name, number, Spent(0, 0))
        self._running.clear()

    def _of_service(self) -> Ledger:
        assert self._ledger is not None, "only gateways with keys that have names ask"
        return self._ledger
