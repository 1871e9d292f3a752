"""Runs one stage of load on a server and records every request."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from qserve.bench.client import LoadClient
from qserve.bench.endpoints import Prompt
from qserve.bench.load import Stage, arrivals
from qserve.bench.records import RequestRecord

__all__ = ["Running", "StageRun", "run_stage"]

# So many in a row that could not even connect, and the server is taken for gone.
_GONE_AFTER = 20


@dataclass
class StageRun:
    """What a stage left behind.

    Attributes:
        duration_s: from the first request to the end of the last.
        began_unix_s: when.
        cpu_s: of this process meanwhile.
        num_cut_off: requests that ran when the user stopped it; they are in no figure.
        gone: the sentence where the server went away, else "".
    """

    stage: Stage
    began_unix_s: float
    records: list[RequestRecord] = field(default_factory=list)
    duration_s: float = 0.0
    cpu_s: float = 0.0
    num_cut_off: int = 0
    gone: str = ""


@dataclass
class Running:
    """What a display reads while a stage runs."""

    run: StageRun
    num_started: int = 0

    @property
    def num_in_flight(self) -> int:
        return self.num_started - len(self.run.records)


async def run_stage(
    client: LoadClient,
    stage: Stage,
    prompts: Iterator[Prompt],
    seed: int,
    stop: asyncio.Event,
    show: Callable[[Running], None] = lambda running: None,
) -> StageRun:
    """Runs it to its end, or until `stop` is set or the server is gone; `show` is called once, when it begins.

    Raises UsageError where `prompts` does.
    """
    due_s = arrivals(stage, random.Random(seed)) if stage.request_rate is not None else []  # noqa: S311
    given = stage.num_prompts if stage.request_rate is None else len(due_s)
    encoded: Iterator[tuple[Prompt, bytes]] = ((prompt, client.encoded(prompt)) for prompt in prompts)
    if given is not None:  # made before the clock starts
        encoded = iter([next(encoded) for _ in range(given)])
    loop = _Loop(client, stage, encoded, due_s, stop)
    show(loop.running)
    return await loop.run()


class _Loop:
    def __init__(
        self,
        client: LoadClient,
        stage: Stage,
        encoded: Iterator[tuple[Prompt, bytes]],
        due_s: list[float],
        stop: asyncio.Event,
    ) -> None:
        self._client = client
        self._stage = stage
        self._encoded = encoded
        self._due_s = due_s
        self._stop = stop
        self._run = StageRun(stage, time.time())
        self._num_unreachable = 0
        self.running = Running(self._run)

    async def run(self) -> StageRun:
        """The collector of cycles rests meanwhile: its pauses would be somebody's latency."""
        work = asyncio.ensure_future(self._closed() if self._stage.request_rate is None else self._open())
        stopped = asyncio.ensure_future(self._stop.wait())
        gc.collect()
        gc.disable()
        cpu_s = time.process_time()
        self._began_s = time.perf_counter()
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._run.duration_s = time.perf_counter() - self._began_s
            self._run.cpu_s = time.process_time() - cpu_s
            gc.enable()
            stopped.cancel()
            if not work.done():
                self._run.num_cut_off = self.running.num_in_flight
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        error = None if work.cancelled() else work.exception()
        if error is not None:
            raise error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        return self._run

    async def _closed(self) -> None:
        async def stream() -> None:
            while self._goes_on() and (following := next(self._encoded, None)) is not None:
                await self._one(following, time.perf_counter() - self._began_s)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._stage.concurrency or 1):
                group.create_task(stream())

    async def _open(self) -> None:
        async with asyncio.TaskGroup() as group:
            for due_s in self._due_s:
                wait_s = self._began_s + due_s - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                if self._run.gone or (following := next(self._encoded, None)) is None:
                    return
                group.create_task(self._one(following, due_s))

    def _goes_on(self) -> bool:
        limit_s = self._stage.duration_s
        return not self._run.gone and (limit_s is None or time.perf_counter() - self._began_s < limit_s)

    async def _one(self, following: tuple[Prompt, bytes], due_s: float) -> None:
        prompt, data = following
        record = RequestRecord(self.running.num_started, due_s, time.perf_counter() - self._began_s)
        record.prompt_tokens = prompt.prompt_tokens
        record.num_texts = self._client.endpoint.num_texts(prompt)
        self.running.num_started += 1
        await self._client.ask(record, data)
        self._run.records.append(record)
        self._note(record)

    def _note(self, record: RequestRecord) -> None:
        if record.failure is None or record.failure.kind != "unreachable":
            self._num_unreachable = 0
            return
        self._num_unreachable += 1
        if self._num_unreachable >= _GONE_AFTER:
            self._run.gone = f"the server stopped answering: {record.failure.sentence}"
