"""Fits an engine's own times (configs/speed.toml, [[engines]]) to published runs, one era at a time.

    .venv/bin/python scripts/fit_speed_engines.py vllm-v1 [--folds]

Coordinate descent in the logarithm, pulled towards what stands in the table (`_PULL`), so that an era with few rows
stays near what is published of the engine. The loss is the mean of the absolute logarithmic error per kind of figure,
bounded, with every (card, model) weighing the same. `--folds` leaves one source out at a time and prints what is lost.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from qserve.core.facts import load
from qserve.planner.speed.terms.engine_costs import EngineCosts
from tests.golden.speed import Case, cases, compare

_PULL = 0.004
_PULL_OF_FEW = 0.5
_MOST_ERROR = 0.8
_MOST_CASES = 45
# Where every fold begins: published of the engines before these rows were seen. BLIS's fit of vLLM 0.15 on an H100
# (inference-sim, docs/guide/latency-models.md: 126 us a step, 32 a layer, 4 a request, 15.6 ms), AIConfigurator's
# 0.8 ms of dispatch a layer; the first vLLM's steps with what vllm#6854 saw of its host.
_PUBLISHED = {"step_us": 126.0, "layer_us": 32.0, "request_us": 4.0, "dispatch_layer_us": 800.0, "intake_ms": 15.6,
              "prefill_factor": 1.0}  # fmt: skip
_PUBLISHED_FIRST = {**_PUBLISHED, "step_us": 2000.0}
# vLLM 0.12 takes 51 ms a token here whatever the batch: experts without a tuned kernel. Judged, and not fitted to.
_NOT_FITTED = (("h200", "Qwen/Qwen3-235B-A22B-FP8"),)
_FIELDS = (
    "step_us", "layer_us", "request_us", "dispatch_layer_us", "intake_ms", "prefill_factor", "moe_layer_us",
    "state_layer_us", "dispatch_moe_us", "dispatch_state_us",
)  # fmt: skip


def costs_of(era: str) -> EngineCosts:
    row = next(row for row in load("speed")["engines"] if row["era"] == era)
    return EngineCosts(**{name: row[name] for name in EngineCosts.__dataclass_fields__ if name in row})


def loss(some: Sequence[Case], costs: EngineCosts, start: EngineCosts) -> float:
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for one in compare(some, {costs.era: costs}):
        error = min(abs(math.log(one.planned / one.measured)), _MOST_ERROR)
        groups[one.kind.split(" ")[0], one.case.gpu, one.case.model].append(error)
    kinds: dict[str, list[float]] = defaultdict(list)
    for (kind, *_), errors in groups.items():
        kinds[kind].append(sum(errors) / len(errors))
    fit = sum((0.5 if kind == "ttft" else 1) * sum(errors) / len(errors) for kind, errors in kinds.items())
    moved = sum(math.log(getattr(costs, name) / getattr(start, name)) ** 2 for name in _FIELDS if getattr(start, name))
    return fit + (_PULL + _PULL_OF_FEW / len(some)) * moved


def fitted(some: Sequence[Case], start: EngineCosts) -> EngineCosts:
    best, least = start, loss(some, start, start)
    names = [name for name in _FIELDS if getattr(start, name) and _matters(name, some)]
    for factor in (1.6, 1.3, 1.1):
        for name in names:
            for step in (factor, 1 / factor):
                before = least
                while (found := loss(some, tried := _moved(best, name, step), start)) < least - 1e-5:
                    best, least = tried, found
                if least < before:
                    break
    return best


def _moved(costs: EngineCosts, name: str, factor: float) -> EngineCosts:
    return replace(costs, **{name: getattr(costs, name) * factor})


def _matters(name: str, some: Sequence[Case]) -> bool:
    text = " ".join(one.model for one in some)
    if "moe" in name:
        return any(part in text for part in ("-A", "57B", "Next"))
    return "state" not in name or any(part in text for part in ("3.5", "3.6", "3.8", "Next"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("era")
    parser.add_argument("--folds", action="store_true")
    arguments = parser.parse_args()
    of_era = [one for one in cases() if one.era == arguments.era and (one.gpu, one.model) not in _NOT_FITTED]
    some, start = of_era[:: -(-len(of_era) // _MOST_CASES)], costs_of(arguments.era)
    if not arguments.folds:
        best = fitted(some, start)
        print(f"{arguments.era}: {loss(some, start, start):.4f} -> {loss(some, best, start):.4f}, {len(some)} runs")
        for name in _FIELDS:
            print(f"{name} = {getattr(best, name):.4g}")
        return
    start = replace(start, **(_PUBLISHED_FIRST if start.era == "vllm-v0" else _PUBLISHED))
    judged = [one for one in cases() if one.era == arguments.era]
    print("source,era,gpu,model,quant,kind,measured,planned")
    for source in sorted({one.source for one in judged}):
        rest = [one for one in some if one.source != source]
        best = fitted(rest, start) if rest else start
        for one in compare([one for one in judged if one.source == source], {best.era: best}):
            case = one.case
            print(
                f"{source},{case.era},{case.gpu},{case.model},{case.quant},{one.kind},{one.measured},{one.planned}",
                flush=True,
            )


if __name__ == "__main__":
    main()
