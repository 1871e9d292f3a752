"""The adapters of one worker, by vLLM's own routes for them, which qserve's workers have as well."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from qserve.errors import WorkerFailed
from qserve.worker.base import WorkerFacts, WorkerState, WorkerStatus

__all__ = ["AdapterRefused", "WorkerAdapters"]

_LOAD, _UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
# An adapter of rank 256 over a 32B has 4 GB; a slow disk gives 50 MB/s.
_LIMIT_S = 120.0

SendWithin = Callable[[str, str, bytes, float], Awaitable[tuple[int, bytes]]]
"""As `SendRequest`, with a limit in seconds."""


class AdapterRefused(Exception):
    """The worker's own words; `is_lost`: it did not answer."""

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost


class WorkerAdapters:
    """`wanted` is what the worker is to have: the folders by name. Set first, then told to a worker that runs."""

    def __init__(self, status: WorkerStatus, send: SendWithin) -> None:
        self.wanted: dict[str, Path] = {}
        self.at_start: tuple[str, ...] = ()
        """Those that the engine's own flags name."""
        self._status = status
        self._send = send
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def brought_back(self, facts: WorkerFacts) -> AsyncIterator[WorkerFacts]:
        """Loads what is wanted into a worker that has just started; its facts with all names.

        Inside the block it becomes ready: what is wanted later is told to it after that. Raises WorkerFailed.
        """
        async with self._turn:
            self.found(facts)
            for name, folder in list(self.wanted.items()):
                try:
                    await self._load(name, folder)
                except AdapterRefused as error:
                    raise WorkerFailed(f"the adapter {name!r} could not be loaded again: {error}") from None
            yield self.named(facts)

    def found(self, facts: WorkerFacts) -> WorkerFacts:
        """The facts of a worker that has what is wanted."""
        self.at_start = tuple(name for name in facts.adapters if name not in self.wanted)
        return self.named(facts)

    def named(self, facts: WorkerFacts) -> WorkerFacts:
        """With the names of what is wanted."""
        return replace(facts, adapters=(*self.at_start, *self.wanted))

    async def load(self, name: str, folder: Path) -> None:
        """Into the running worker; one that starts finds it among what is wanted. Raises AdapterRefused."""
        async with self._turn:
            if self._status.state is WorkerState.READY:
                await self._load(name, folder)

    async def unload(self, name: str) -> None:
        """From the running worker, if it has it. Raises AdapterRefused."""
        async with self._turn:
            if self._status.state is WorkerState.READY:
                await self._ask(_UNLOAD, {"lora_name": name}, well=(200, 404))

    async def _load(self, name: str, folder: Path) -> None:
        await self._ask(_LOAD, {"lora_name": name, "lora_path": str(folder), "load_inplace": True}, well=(200,))

    async def _ask(self, path: str, document: dict[str, object], well: tuple[int, ...]) -> None:
        status, body = await self._send("POST", path, json.dumps(document).encode(), _LIMIT_S)
        if status == 0:
            raise AdapterRefused(f"{self._status.name} did not answer", is_lost=True)
        if status not in well:
            raise AdapterRefused(f"{self._status.name}: {_message(body)}")


def _message(body: bytes) -> str:
    try:
        document = json.loads(body)
        return str(document.get("error", document)["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return body.decode(errors="replace")[:500]
