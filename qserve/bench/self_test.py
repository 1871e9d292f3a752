"""Tests the load generator: its figures of a server with known latencies, and its own cost.

The fake server runs in a process of its own, so that it shares no interpreter with the client that times it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from qserve.bench.client import LoadClient
from qserve.bench.connection import Address
from qserve.bench.endpoints import ENDPOINTS, Endpoint, Prompt
from qserve.bench.load import Stage
from qserve.bench.metrics import StageFigures, figures_of
from qserve.bench.run import Running, run_stage
from qserve.errors import WorkerFailed

__all__ = ["Check", "Cost", "SelfTest", "fake_server", "run_self_test"]

TOLERANCE_MS = 2.0
TOLERANCE = 0.02
_TTFT_MS = 120.0
_ITL_MS = 20.0
_NUM_TOKENS = 64
_STAGES = (
    Stage(concurrency=1, num_prompts=3),
    Stage(concurrency=8, num_prompts=24),
    # About 32 at once, none of them in step with another.
    Stage(request_rate=23.0, num_prompts=92),
)
_FLOOD_STREAMS = 4
_FLOOD_TOKENS = 8000


@dataclass(frozen=True)
class Check:
    """A median against the truth, in milliseconds."""

    stage: Stage
    name: str
    true_ms: float
    seen_ms: float

    @property
    def error_ms(self) -> float:
        return self.seen_ms - self.true_ms

    @property
    def error(self) -> float:
        """As a share of the truth."""
        return self.error_ms / self.true_ms

    @property
    def is_good(self) -> bool:
        """Within 2 ms, and within 2 %."""
        return abs(self.error_ms) <= TOLERANCE_MS and abs(self.error) <= TOLERANCE


@dataclass(frozen=True)
class Cost:
    """Of the generator: CPU time a chunk where chunks come one by one, and chunks a second when they flood in."""

    paced_us: float
    flooded_us: float
    most_chunks_per_s: float


@dataclass(frozen=True)
class SelfTest:
    """What came out."""

    checks: tuple[Check, ...]
    cost: Cost

    @property
    def is_good(self) -> bool:
        return all(check.is_good for check in self.checks)


@contextlib.contextmanager
def fake_server(ttft_ms: float, itl_ms: float) -> Iterator[str]:
    """Its address. Raises WorkerFailed where it does not start."""
    command = [sys.executable, "-m", "qserve.bench.fake_server", "--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise WorkerFailed("the fake server did not start; its output is above")
            yield url
        finally:
            process.terminate()


async def run_self_test(stop: asyncio.Event, show: Callable[[Running], None]) -> SelfTest:
    """About ten seconds; a part that `stop` cut off is judged by what there is."""
    checks: list[Check] = []
    paced: StageFigures | None = None
    with fake_server(_TTFT_MS, _ITL_MS) as url:
        for stage in _STAGES:
            paced = await _load(url, stage, _NUM_TOKENS, stop, show)
            checks += _checks(stage, paced)
    with fake_server(0.0, 0.0) as url:
        stage = Stage(concurrency=_FLOOD_STREAMS, num_prompts=2 * _FLOOD_STREAMS)
        flood = await _load(url, stage, _FLOOD_TOKENS, stop, show)
    assert paced is not None
    return SelfTest(tuple(checks), Cost(_us(paced), _us(flood), flood.num_chunks / max(flood.duration_s, 1e-9)))


async def _load(
    url: str, stage: Stage, num_tokens: int, stop: asyncio.Event, show: Callable[[Running], None]
) -> StageFigures:
    client = LoadClient(Address.of(url), Endpoint("chat", ENDPOINTS["chat"], "fake"))
    prompts = iter(lambda: Prompt("one two three", num_tokens), None)
    try:
        warm = Stage(concurrency=8, num_prompts=8)
        await run_stage(client, warm, iter(lambda: Prompt("one two three", 1), None), 0, stop)
        return figures_of(await run_stage(client, stage, prompts, 0, stop, show), {})
    finally:
        client.close()


def _checks(stage: Stage, figures: StageFigures) -> list[Check]:
    e2el_ms = _TTFT_MS + (_NUM_TOKENS - 1) * _ITL_MS
    true = {"TTFT": _TTFT_MS, "TPOT": _ITL_MS, "ITL": _ITL_MS, "E2E": e2el_ms}
    seen = {"TTFT": figures.ttft, "TPOT": figures.tpot, "ITL": figures.itl, "E2E": figures.e2el}
    return [Check(stage, name, true[name], seen[name].p50) for name in true]


def _us(figures: StageFigures) -> float:
    """CPU time a chunk, all that belongs to requests shared out over their chunks."""
    return 1e6 * figures.cpu_share * figures.duration_s / max(1, figures.num_chunks)
