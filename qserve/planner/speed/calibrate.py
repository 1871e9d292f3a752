"""From a run's requests to factors on a plan's steps: those with which the simulation takes what the requests took."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from qserve.planner.speed.calibration import CorrectedSteps, StepFactors
from qserve.planner.speed.figures import percentile
from qserve.planner.speed.served import ServedRequest, replayed
from qserve.planner.speed.simulated import Finished, Limits, Steps

__all__ = ["residual_of"]

Part = tuple[Steps, Sequence[ServedRequest]]
"""Requests, and the steps of the machine as it was when they were answered."""
Pair = tuple[ServedRequest, Finished]
"""A request, and what it takes on simulated steps."""
Times = list[list[tuple[float, float]]]
"""Of each part, of each request: measured and simulated, seconds."""
_LEAST_REQUESTS = 3
_ROUNDS, _MORE_ROUNDS = 5, 2
_MOST_FACTOR = 6.0
"""A machine further off than this did something else meanwhile: nothing is learned from it."""
_NUDGE = 0.05
_MOST_MOVE = 0.7
_FEW_TOKENS = 8
"""Of an answer: in one with fewer, whether a prompt of somebody else fell into it says more than its steps do."""
_MOST_OTHERS = 0.95
_LEFT_OUT = 0.1
"""Of a group's requests, at each end of measured over simulated."""
# How firmly, in the logarithm, a factor stays where nothing is known: the first of a kind at 1, the others at the one
# before them, so that what is seen at one size holds for all. One load does not tell what a prompt's steps take from
# what lies before them: there the intake stays.
_PULL_DECODE, _PULL_PREFILL, _PULL_INTAKE, _PULL_NEXT = 0.01, 0.03, 0.15, 0.03
_PLANNED_WITHIN = 0.10
"""In the logarithm, how far off a plan is that knows no run of its machine, unless the runs say that it is more."""
_DEVIATION_OF_MEDIAN = 1.48
"""A normal distribution's standard deviation over the median of the distances from its middle."""


@dataclass(frozen=True)
class _Unknowns:
    """The sizes that factors are sought for: sequences of a decode step, prompts' tokens of a step.

    The doubts are how uncertain what was measured is, over how uncertain the plan is: at 1 a factor goes half way.
    """

    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    decode_doubt: float = 0.0
    prefill_doubt: float = 0.0

    @property
    def count(self) -> int:
        return len(self.sequences) + len(self.tokens) + 1

    def factors(self, logs: Sequence[float]) -> StepFactors:
        values, split = [math.exp(one) for one in logs], len(self.sequences)
        return StepFactors(
            tuple(zip(self.sequences, values[:split], strict=True)),
            tuple(zip(self.tokens, values[split:-1], strict=True)),
            values[-1],
        )

    def held_back(self, logs: Sequence[float]) -> list[float]:
        """What the factors miss of where they stay without a reason."""
        split = len(self.sequences)
        found = [-_PULL_INTAKE * logs[-1]]
        for part, pull, doubt in (
            (logs[:split], _PULL_DECODE, self.decode_doubt),
            (logs[split:-1], _PULL_PREFILL, self.prefill_doubt),
        ):
            found.append(-math.hypot(pull, doubt) * part[0])
            next_pull = math.hypot(_PULL_NEXT, doubt)
            found += [-next_pull * (after - before) for before, after in itertools.pairwise(part)]
        return found


def residual_of(parts: Iterable[Part], limits: Limits, others: float = 0.0) -> StepFactors | None:
    """Factors with which the simulation of the same requests takes what they took.

    Requests are grouped by how many were answered at a time. For each group of some requests there is a factor on the
    decode steps of so many sequences and one on the steps that prefill so many prompts; TPOT and TTFT of each group,
    measured over simulated, are brought to 1 (Gauss-Newton in the logarithm). The prior is weak where the parts agree;
    where they do not, as on a machine that others use, a factor goes as far as they are to be believed beside the plan.
    A load that was seen once is believed by how far its requests lie apart. `others` is the share of the processors
    that other programs took: by as much as that may stretch a step, nothing is certain.
    None for too few requests and for decode steps that are off beyond belief; the other factors are bounded.
    """
    parts = [(steps, [one for one in served if one.output_tokens > 1 and one.ttft_s > 0]) for steps, served in parts]
    everyone = [one for _, served in parts for one in served]
    if len(everyone) < _LEAST_REQUESTS:
        return None
    levels = {id(one): level for one, level in zip(everyone, _levels(everyone), strict=True)}
    least = min(_FEW_TOKENS, max(one.output_tokens for one in everyone))
    unknowns = _unknowns([one for one in everyone if one.output_tokens >= least], levels, limits)

    def pairs_at(factors: StepFactors) -> list[list[Pair]]:
        return [list(replayed(CorrectedSteps(steps, factors), limits, served)) for steps, served in parts]

    def missed_by(unknowns: _Unknowns) -> Callable[[Sequence[float]], list[float]]:
        return lambda logs: _missed(pairs_at(unknowns.factors(logs)), levels, least) + unknowns.held_back(logs)

    found = _solved(missed_by(unknowns), [0.0] * unknowns.count, _ROUNDS)
    if found is None:
        return None
    decode_doubt, prefill_doubt = _doubts(
        _times(pairs_at(StepFactors()), levels, least), _times(pairs_at(unknowns.factors(found)), levels, least), others
    )
    unknowns = replace(unknowns, decode_doubt=decode_doubt, prefill_doubt=prefill_doubt)
    found = _solved(missed_by(unknowns), found, _MORE_ROUNDS) or found
    most = math.log(_MOST_FACTOR)
    if max(map(abs, found[: len(unknowns.sequences)])) >= most:
        return None
    return unknowns.factors([min(max(one, -most), most) for one in found])


def _solved(missed: Callable[[Sequence[float]], list[float]], found: list[float], rounds: int) -> list[float] | None:
    """So many steps of Gauss-Newton on from what was `found`; None where no request was answered."""
    for _ in range(rounds):
        now = missed(found)
        if len(now) == len(found):
            return None
        slopes = [_slope(missed, found, place, now) for place in range(len(found))]
        moves = _step(slopes, now)
        found = [one + min(max(move, -_MOST_MOVE), _MOST_MOVE) for one, move in zip(found, moves, strict=True)]
    return found


def _levels(served: Sequence[ServedRequest]) -> list[int]:
    """Of each request the power of two nearest to how many were answered in the middle of it."""
    middles = [one.at_s + one.ttft_s + (one.e2e_s - one.ttft_s) / 2 for one in served]
    counts = [sum(other.at_s <= middle < other.ends_s for other in served) for middle in middles]
    return [round(math.log2(max(1, count))) for count in counts]


def _unknowns(served: Sequence[ServedRequest], levels: dict[int, int], limits: Limits) -> _Unknowns:
    """A group of fewer requests has no factors of its own: it is told by those of its neighbours."""
    groups = [levels[id(one)] for one in served]
    known = sorted({level for level in groups if groups.count(level) >= _LEAST_REQUESTS}) or [round(min(groups))]
    prompt = percentile(sorted(one.input_tokens for one in served), 0.5)
    most = limits.max_num_batched_tokens
    return _Unknowns(
        tuple(2**level for level in known), tuple(sorted({min(most, round(prompt * 2**level)) for level in known}))
    )


def _missed(parts: Iterable[Iterable[Pair]], levels: dict[int, int], least: int) -> list[float]:
    """Of each group the logarithm of measured over simulated: TPOT of answers of `least` tokens and more, and TTFT."""
    found = []
    for values in itertools.chain.from_iterable(_times(parts, levels, least)):
        if values:
            weight = min(1.0, sum(map(len, values)) / _LEAST_REQUESTS) ** 0.5
            found.append(weight * math.log(max(_middle(values), 1e-9)))
    return found


def _doubts(
    planned: Sequence[tuple[Times, Times]], fitted: Sequence[tuple[Times, Times]], others: float
) -> tuple[float, float]:
    """Of TPOT and of TTFT how uncertain what the parts say is, over how far off the plan may be.

    Each by group, simulated as planned, and with factors that fit: what still lies apart then is not for the steps'
    times. Off the plan may be by `_PLANNED_WITHIN`, or by what most of its groups are, if it is more.
    """
    stretched = -math.log1p(-min(others, _MOST_OTHERS))

    def doubt(kind: int) -> float:
        before, after = ([one[kind] for one in times if one[kind]] for times in (planned, fitted))
        if not before:
            return 0.0
        errors = [_error(_logs(group)) if len(group) > 1 else _seen_once(group[0]) for group in after]
        off = median(abs(median(_logs(group))) for group in before)
        return math.hypot(math.sqrt(fmean(error**2 for error in errors)), stretched) / max(_PLANNED_WITHIN, off)

    return doubt(0), doubt(1)


def _logs(group: Times) -> list[float]:
    """Of each part measured over simulated. By medians later: one in which others computed says nothing of the rest."""
    return [math.log(max(_ratio(part), 1e-9)) for part in group]


def _seen_once(pairs: Sequence[tuple[float, float]]) -> float:
    """The same of a group with one part, by what its requests lie apart.

    Requests that were answered together share their moment, so that more of them say less than their number.
    """
    logs = [math.log(max(measured / planned, 1e-9)) for measured, planned in pairs]
    return _error(logs) * math.sqrt(math.sqrt(len(logs)))


def _error(values: Sequence[float]) -> float:
    """The standard error of the middle one, by the median of what they lie apart from it."""
    middle = median(values)
    return _DEVIATION_OF_MEDIAN * median(abs(value - middle) for value in values) / math.sqrt(len(values))


def _times(parts: Iterable[Iterable[Pair]], levels: dict[int, int], least: int) -> list[tuple[Times, Times]]:
    """Of each group TPOT of answers of `least` tokens and more, and TTFT."""
    groups: dict[int, list[list[Pair]]] = {}
    for part in parts:
        mine: dict[int, list[Pair]] = {}
        for one, planned in part:
            if planned.output_tokens > 1 and planned.ttft_s > 0:
                mine.setdefault(levels[id(one)], []).append((one, planned))
        for level, pairs in mine.items():
            groups.setdefault(level, []).append(pairs)
    long = {
        level: [kept for pairs in group if (kept := [pair for pair in pairs if pair[0].output_tokens >= least])]
        for level, group in groups.items()
    }
    enough = [level for level in groups if sum(map(len, long[level])) >= _LEAST_REQUESTS]
    # One or two requests have no factors of their own, and must not draw those of others away.
    return [
        (
            [[(one.tpot_s, planned.tpot_s) for one, planned in pairs] for pairs in long[level]],
            [[(one.ttft_s, planned.ttft_s) for one, planned in pairs] for pairs in groups[level]],
        )
        for level in sorted(enough) or sorted(groups)
    ]


def _middle(parts: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Measured over simulated of the part in the middle, by requests: what others computed beside some does not count.

    Between the two in the middle where there is an even number of them.
    """
    ratios = sorted((_ratio(part), len(part)) for part in parts)
    half, seen = sum(count for _, count in ratios) / 2, 0
    for place, (ratio, count) in enumerate(ratios):
        seen += count
        if seen == half:
            return math.sqrt(ratio * ratios[place + 1][0])
        if seen > half:
            return ratio
    raise AssertionError("no parts")


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Measured over simulated of all together, without those that are furthest off."""
    ordered = sorted(pairs, key=lambda pair: pair[0] / pair[1])
    few = int(_LEFT_OUT * len(ordered))
    kept = ordered[few : len(ordered) - few]
    return sum(measured for measured, _ in kept) / sum(planned for _, planned in kept)


def _slope(
    missed: Callable[[Sequence[float]], list[float]], at: Sequence[float], place: int, now: Sequence[float]
) -> list[float]:
    nudged = [one + _NUDGE * (index == place) for index, one in enumerate(at)]
    there = missed(nudged)
    return [(b - a) / _NUDGE for a, b in zip(now, there, strict=True)] if len(there) == len(now) else [0.0] * len(now)


def _step(slopes: Sequence[Sequence[float]], now: Sequence[float]) -> list[float]:
    """The least-squares step: (J J^T) x = -J r, by elimination."""
    size = len(slopes)
    rows = [
        [sum(a * b for a, b in zip(one, other, strict=True)) + 1e-9 * (i == j) for j, other in enumerate(slopes)]
        + [-sum(a * b for a, b in zip(one, now, strict=True))]
        for i, one in enumerate(slopes)
    ]
    for pivot in range(size):
        best = max(range(pivot, size), key=lambda row: abs(rows[row][pivot]))
        rows[pivot], rows[best] = rows[best], rows[pivot]
        for row in range(size):
            if row != pivot:
                share = rows[row][pivot] / rows[pivot][pivot]
                rows[row] = [a - share * b for a, b in zip(rows[row], rows[pivot], strict=True)]
    return [rows[index][size] / rows[index][index] for index in range(size)]
