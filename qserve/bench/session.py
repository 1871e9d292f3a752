"""Runs a whole load test: checks, warm-up and all stages."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from qserve.bench.client import LoadClient
from qserve.bench.endpoints import Prompt
from qserve.bench.load import Stage
from qserve.bench.metrics import StageFigures, figures_of
from qserve.bench.records import RequestRecord
from qserve.bench.run import Running, StageRun, run_stage
from qserve.bench.saturation import is_saturated
from qserve.bench.target import first_request

__all__ = ["LoadPlan", "PromptSource", "Session", "bounded", "run_session"]

# Where neither --num-prompts nor --duration says it: enough for a median at the lightest load.
_FEWEST_PROMPTS = 20
_PROMPTS_PER_STREAM = 4
_OPEN_LOOP_S = 30.0
_SWEEP_S = 15.0


class PromptSource(Protocol):
    """What requests ask, without end; the same prompts for the same seed."""

    def prompts(self, rng: random.Random) -> Iterator[Prompt]: ...


@dataclass(frozen=True)
class LoadPlan:
    """What the user wants.

    Attributes:
        stages: one after another; of a sweep the first one, which is doubled until that brings nothing.
        sweep: the most requests at once, 0 for no sweep.
        num_warmups: requests before the first stage, in no figure.
        goodput: limits in milliseconds, by name.
    """

    stages: tuple[Stage, ...]
    sweep: int = 0
    num_warmups: int = 2
    seed: int = 0
    goodput: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Session:
    """What came of it; grows while it runs, so that whoever interrupts it has what there is."""

    began_unix_s: float = field(default_factory=time.time)
    first: RequestRecord | None = None
    runs: list[StageRun] = field(default_factory=list)
    figures: list[StageFigures] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def gone(self) -> str:
        """The sentence where the server went away."""
        return self.runs[-1].gone if self.runs else ""


async def run_session(
    client: LoadClient,
    plan: LoadPlan,
    source: PromptSource,
    stop: asyncio.Event,
    show: Callable[[Running], None] = lambda running: None,
) -> Session:
    """Every stage, until the server is gone or `stop` is set. Raises UsageError where the first request fails."""
    session = Session()
    warm = source.prompts(_rng(plan.seed, "warm-up"))
    try:
        session.first, session.notes = await first_request(client, warm)
        if plan.num_warmups:
            most = max((stage.concurrency or 1) for stage in plan.stages)
            at_once = Stage(concurrency=min(plan.num_warmups, most), num_prompts=plan.num_warmups)
            await run_stage(client, at_once, warm, plan.seed, stop)
        for number, stage in enumerate(_stages(plan, session)):
            if stop.is_set() or session.gone:
                break
            prompts = source.prompts(_rng(plan.seed, f"stage {number}"))
            run = await run_stage(client, stage, prompts, plan.seed + number, stop, show)
            session.runs.append(run)
            session.figures.append(figures_of(run, plan.goodput))
    finally:
        client.close()
    return session


def _stages(plan: LoadPlan, session: Session) -> Iterator[Stage]:
    if not plan.sweep:
        yield from map(bounded, plan.stages)
        return
    concurrency = 1
    while concurrency <= plan.sweep and not is_saturated(session.figures):
        first = plan.stages[0]
        duration_s = _SWEEP_S if first.num_prompts is None and first.duration_s is None else first.duration_s
        yield dataclasses.replace(first, concurrency=concurrency, duration_s=duration_s)
        concurrency *= 2


def bounded(stage: Stage) -> Stage:
    """With a number of requests where nothing says when it ends."""
    if stage.num_prompts is not None or stage.duration_s is not None:
        return stage
    if stage.request_rate is not None:
        wanted = math.ceil(stage.request_rate * _OPEN_LOOP_S)
    else:
        wanted = _PROMPTS_PER_STREAM * (stage.concurrency or 1)
    return dataclasses.replace(stage, num_prompts=max(_FEWEST_PROMPTS, wanted))


def _rng(seed: int, part: str) -> random.Random:
    """Each stage has prompts of its own, so that no cache of prefixes carries over."""
    return random.Random(f"{seed} {part}")  # noqa: S311 - a load has nothing to hide
