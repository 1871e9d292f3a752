"""Simulations that end as soon as they have told what is asked of them: the same plans as from whole ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.planner.speed.estimate import Replica
from qserve.planner.speed.figures import Figures, KeptCount, Targets
from qserve.planner.speed.load import Load
from qserve.planner.speed.simulated import Finished

GOES_ON = Callable[[Sequence[Finished]], bool]
LOADS = (
    ("--gpu", "h100-sxm:4", "--rps", "12", "--ttft", "1s", "--tpot", "50ms"),
    ("--gpu", "h100-sxm:2", "--rps", "3", "--ttft", "300ms", "--tpot", "20ms"),
    ("--gpu", "h100-sxm:2", "--quant", "fp8", "--concurrency", "128", "--ttft", "60s", "--tpot", "25ms"),
    ("--gpu", "rtx-4090", "--users", "30", "--ttft", "3s", "--tpot", "60ms"),
    ("--gpu", "l40s:2", "--burst", "40", "--ttft", "2s", "--tpot", "40ms"),
    ("--gpu", "a100-80gb:2", "--concurrency", "24", "--input", "4000", "--output", "200", "--tpot", "30ms"),
)


def plan(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["--no-learn", "--json", "--model", "Qwen/Qwen3-32B", *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("load", LOADS, ids=" ".join)
def test_a_plan_is_that_of_whole_simulations(load: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    ended, run_while = [], Replica.run_while

    def counted(replica: Replica, load: Load, goes_on: GOES_ON, replicas: int = 1) -> Figures | None:
        ended.append(found := run_while(replica, load, goes_on, replicas))
        return found

    monkeypatch.setattr(Replica, "run_while", counted)
    early = plan(*load)
    assert None in ended, "some end early"
    monkeypatch.setattr(Replica, "run_while", lambda replica, load, goes_on, count=1: replica.run(load, count))
    assert early == plan(*load)


@pytest.mark.parametrize("seed", range(40))
def test_a_count_says_what_the_whole_run_comes_to(seed: int) -> None:
    draw = random.Random(seed)
    total, share = draw.randint(1, 60), draw.choice([0.0, 0.35, 0.5, 0.9, 1.0])
    answers = [Finished(0.0, draw.choice([0.5, 2.0]), 3.0, 10, 10) for _ in range(draw.randint(1, total))]
    targets = Targets(ttft_ms=1000)
    count, kept = KeptCount(targets, total, share), targets.kept_by(answers) / len(answers)
    for one in answers:
        if not count.can_reach([one]):
            assert kept < share
            return
        if count.has_reached:
            assert kept >= share
            return
