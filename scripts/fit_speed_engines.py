"""Fits an engine's own times (configs/speed.toml, [[engines]]) to published runs, one era at a time.

    .venv/bin/python scripts/fit_speed_engines.py vllm-v1 [--folds]

Coordinate descent in the logarithm, pulled towards where it begins (`_PULL`), so that an era with few rows stays near:
what stands in the table, and for folds what is published of the engine (`_PUBLISHED`). The loss is the mean of the
absolute logarithmic error per kind of figure, bounded; kinds, and within them every (card, model), weigh as the roots
of their rows.

`--folds` leaves out one card with one release at a time, and prints its rows as planned then, without what the card's
kernels were corrected by from such rows either: those of all eras are kept in tests/golden/speed_folds.csv, which bands
and accuracy are read from. Of the transformers library (era transformers) each host's rows are planned by the other
host's launches.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from qserve.core.facts import load
from qserve.core.hardware import known_gpus
from qserve.planner.speed.terms.engine_costs import EngineCosts
from tests.golden.speed import Case, Comparison, cases, compare

_PULL = 0.004
_PULL_OF_FEW = 0.5
_MOST_ERROR = 0.8
_MOST_CASES, _FOLD_CASES = 120, 32
# Where every fold begins: published of the engines before these rows were seen. BLIS's fit of vLLM 0.15 on an H100
# (inference-sim, docs/guide/latency-models.md: 126 us a step, 32 a layer, 4 a request, 15.6 ms); the first vLLM's steps
# with what vllm#6854 saw of its host. BLIS's 32 us stand above bare rooflines; the kernels here begin at floors of
# their own (H100: four products of 3.4 us, attention's 12.4), which are taken off. 5 and 10 us: floors of a router's
# and of a state's kernels. AIConfigurator's 0.8 ms of dispatch a layer are of all families, those with experts among
# them (vllm_backend.py, 0.12.0), so that experts add but their ten launches more of 10 us. Of a state's launches
# nothing is published; they are mostly Triton's.
_PUBLISHED = {
    "step_us": 126.0,
    "layer_us": 6.0,
    "request_us": 4.0,
    "dispatch_layer_us": 800.0,
    "graph_share": 0.3,
    "intake_ms": 15.6,
    "queued_ms": 2.0,
    "intake_ms_per_1k": 1.0,
    "prefill_factor": 1.0,
    "moe_layer_us": 5.0,
    "state_layer_us": 10.0,
    "dispatch_moe_us": 100.0,
    "dispatch_state_us": 482.0,
}
_FIRMER = {"dispatch_layer_us": 5.0, "dispatch_moe_us": 5.0, "step_us": 5.0}
"""Pulled harder: a corpus of its own is behind launches, and few rows tell one kind of layer's from another's. Rows of
one model do not tell a step's time from its layers', and the former would take all of it."""
# Before asynchronous scheduling a step waits for its scheduler: 0.54 ms, and 12.7 us a request (simllm#204).
_PUBLISHED_OF = {
    "vllm-v0": {**_PUBLISHED, "step_us": 2000.0},
    "vllm-v1": {**_PUBLISHED, "step_us": 126.0 + 540.0, "request_us": 4.0 + 12.7},
}
# vLLM 0.12 takes 51 ms a token here whatever the batch: experts without a tuned kernel. Judged, and not fitted to.
_NOT_FITTED = (("h200", "Qwen/Qwen3-235B-A22B-FP8"),)
# So many chat requests at once are bound by the host and by the client beside the server (GPUStack's pages: 9 to 27 ms
# of wall time each, whatever the engine; its single H100 takes prompts 1.6 times as long as planned in all three
# engines). Judged as well, and not fitted to.
_LARGEST_BURST = 300
_FIELDS = (
    "step_us",
    "layer_us",
    "request_us",
    "dispatch_layer_us",
    "graph_share",
    "intake_ms",
    "queued_ms",
    "intake_ms_per_1k",
    "prefill_factor",
    "moe_layer_us",
    "state_layer_us",
    "dispatch_moe_us",
    "dispatch_state_us",
)


def costs_of(era: str) -> EngineCosts:
    row = next(row for row in load("speed")["engines"] if row["era"] == era)
    return EngineCosts(**{name: row[name] for name in EngineCosts.__dataclass_fields__ if name in row})


def published_of(era: str) -> EngineCosts:
    """The era's row with the times that are published of its engine."""
    return replace(costs_of(era), **_PUBLISHED_OF.get(era, _PUBLISHED))


def loss(some: Sequence[Case], costs: EngineCosts, start: EngineCosts) -> float:
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for one in compare(some, {costs.era: costs}):
        error = min(abs(math.log(one.planned / one.measured)), _MOST_ERROR)
        groups[one.kind, one.case.gpu, one.case.model].append(error)
    kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (kind, *_), errors in groups.items():
        kinds[kind].append((len(errors) ** 0.5, sum(errors) / len(errors)))
    rows = {kind: sum(weight**2 for weight, _ in found) for kind, found in kinds.items()}
    fit = sum(
        (0.5 if "ttft" in kind else 1)
        * (rows[kind] / max(rows.values())) ** 0.5
        * sum(weight * error for weight, error in found)
        / sum(weight for weight, _ in found)
        for kind, found in kinds.items()
    )
    moved = sum(
        _FIRMER.get(name, 1.0) * math.log(getattr(costs, name) / getattr(start, name)) ** 2
        for name in _FIELDS
        if getattr(start, name)
    )
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
    moved = getattr(costs, name) * factor
    return replace(costs, **{name: min(moved, 1.0) if name == "graph_share" else moved})


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
    if arguments.era == "transformers":
        for one in other_hosts():
            print(f"{one.id},{one.planned:.6g}")
        return
    of_era = [one for one in cases() if one.era == arguments.era and _is_fitted_to(one)]
    some = _spread(of_era, _MOST_CASES)
    start = costs_of(arguments.era)
    if not arguments.folds:
        best = fitted(some, start)
        print(f"{arguments.era}: {loss(some, start, start):.4f} -> {loss(some, best, start):.4f}, {len(some)} runs")
        for name in _FIELDS:
            print(f"{name} = {getattr(best, name):.4g}")
        return
    for one in folds(arguments.era, of_era, published_of(arguments.era)):
        print(f"{one.id},{one.planned:.6g}", flush=True)


def _is_fitted_to(case: Case) -> bool:
    return (case.gpu, case.model) not in _NOT_FITTED and (case.load.burst or 0) <= _LARGEST_BURST


def _spread(some: Sequence[Case], most: int) -> Sequence[Case]:
    """Every so manyth, as many as a fit takes minutes for."""
    return some[:: -(-len(some) // most)]


def folds(era: str, of_era: Sequence[Case], start: EngineCosts) -> Iterator[Comparison]:
    """Every judged row of the era, planned by costs that its own (card, release) had no part in."""
    judged = [one for one in cases() if one.era == era]
    for group in sorted({one.group for one in judged}):
        rest = _spread([one for one in of_era if one.group != group], _FOLD_CASES)
        best = fitted(rest, start) if rest else start
        print(group, len(rest), {name: round(getattr(best, name), 3) for name in _FIELDS}, file=sys.stderr, flush=True)
        yield from compare([one for one in judged if one.group == group], {best.era: best}, unseen=True)


def other_hosts() -> Iterator[Comparison]:
    """The transformers library's rows, each planned by the launches of the other host that was measured."""
    table = load("speed")["transformers"]
    swapped = {"NVIDIA A100 80GB": "h20", known_gpus()["a100-80gb"].name: "h20", "NVIDIA H20": "a100-80gb"}
    cards = dict(table["cards"])
    table["cards"].update(swapped)
    try:
        yield from compare([one for one in cases() if one.engine == "transformers"])
    finally:
        table["cards"].clear()
        table["cards"].update(cards)


if __name__ == "__main__":
    main()
