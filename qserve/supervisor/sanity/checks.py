"""Runs the check of `sanity.py` for all workers: `--strict` waits for it, otherwise only for a short time.

vLLM compiles its log-probabilities at their first use, on a CPU for up to half a minute: the service must not wait for
that, and the result may follow the ready screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from qserve.supervisor.record import RunRecord
from qserve.supervisor.runner import Worker
from qserve.supervisor.sanity.check import Sanity
from qserve.supervisor.screen import Screen, check_rows

__all__ = ["PATIENCE_S", "Checks"]

PATIENCE_S = 5.0


class Checks:
    """The checks of all chat models, in parallel. `close` cancels the pending ones."""

    def __init__(self, workers: Sequence[Worker], record: RunRecord, screen: Screen) -> None:
        """Starts them; the workers must be ready."""
        self._record, self._screen = record, screen
        self._workers = [worker for worker in workers if worker.vocab_size is not None]
        self._tasks = {worker.status.name: asyncio.create_task(self._asked(worker)) for worker in self._workers}
        for name in self._tasks:
            screen.phase(f"{name}: self-test")

    async def first(self, *, strict: bool, patience_s: float = PATIENCE_S) -> dict[str, Sanity]:
        """Results by worker, within `patience_s` unless `strict`; others are pending.

        Raises WorkerFailed, if `strict`, for a model that serves noise, and for one whose check failed.
        """
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=None if strict else patience_s)
        found = {name: task.result() for name, task in self._tasks.items() if task.done()}
        if strict:
            for name, one in found.items():
                one.refuse_noise(name)
        pending = {worker.status.name: Sanity(worker.vocab_size or 0, is_pending=True) for worker in self._workers}
        return pending | found

    async def rest(self) -> None:
        """Wait for the pending ones and report each."""
        for task in [task for task in self._tasks.values() if not task.done()]:
            for name, text in check_rows(await task):
                self._screen.row(name, text)

    async def close(self) -> None:
        """Cancel pending checks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _asked(self, worker: Worker) -> Sanity:
        found = await worker.sanity()
        assert found is not None, "only workers whose model predicts text are asked"
        self._record.event(worker.status.name, "sanity", **found.document())
        return found
