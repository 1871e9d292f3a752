"""Prints how far planned speed is from published figures, by kind of figure, and by engine, card and quantization.

    .venv/bin/python scripts/accuracy_speed.py            the judged rows: with the table's constants, and as folds
    .venv/bin/python scripts/accuracy_speed.py --all      every row that can be planned, the left out ones, too
    .venv/bin/python scripts/accuracy_speed.py --folds    folds alone, by engine, card and quantization
    .venv/bin/python scripts/accuracy_speed.py --bands    bands from the folds, as configs/speed.toml has them

A fold leaves out one card with one release of an engine, and is kept in tests/golden/speed_folds.csv
(`fit_speed_engines.py ERA --folds`, one era after the other). A band is from p`_TAIL` to its other end of measured over
planned in them, where each such group weighs as the root of its rows, and is wider on cards that borrow another's
kernels: so wide that bands which are made without a group hold nine of ten of its rows. Coverage is printed of bands
in configs/speed.toml, and of bands that are made without the group that they are held against.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from qserve.planner.speed.bands import Band, Metric, band_of
from qserve.planner.speed.figures import percentile
from qserve.planner.speed.terms.card import card_of
from tests.golden.speed import Case, Held, cases, compare, device_of

FOLDS = Path(__file__).parent.parent / "tests" / "golden" / "speed_folds.csv"
METRIC: dict[str, Metric] = {
    "tpot": "tpot",
    "ttft at one stream": "ttft_one",
    "ttft above": "ttft",
    "throughput": "throughput",
    "saturated": "saturated",
}
_TAIL, _TAIL_OF_FEW = 0.04, 0.03
_FEW_ROWS, _FEW_GROUPS = 50, 4
_BORROWED_INSIDE = 0.9
"""Of rows of cards that borrow kernels: what share shall be inside."""
_LEAST_BORROWED, _STEP, _MOST_BORROWED = 1.15, 0.05, 2.0
"""By which factor their bands are wider. At least a seventh: the rows are of few of the cards that borrow."""
_FEWEST = 12
"""Of fewer rows no band is made: those of all engines together stand in."""


@dataclass(frozen=True)
class Row(Held):
    group: tuple[str, str, str]
    era: str
    gpu: str
    quant: str
    kind: str
    measured: float
    planned: float

    @property
    def ratio(self) -> float:
        return self.measured / self.planned

    @property
    def is_borrowed(self) -> bool:
        """Whether the card's kernels were measured on another."""
        return bool(card_of(device_of(self.gpu), self.gpu).like)

    @property
    def engine(self) -> str:
        """As bands are kept: the transformers library, and all others together."""
        return self.era if self.era == "transformers" else "other"


def published(every: bool) -> list[Row]:
    return [_row(one.case, one.kind, one.measured, one.planned) for one in compare(cases(every=every))]


def folds() -> list[Row]:
    with FOLDS.open() as file:
        planned = {row["id"]: float(row["planned"]) for row in csv.DictReader(file)}
    return [_row(one.case, one.kind, one.measured, planned[one.id]) for one in compare(cases()) if one.id in planned]


def _row(case: Case, kind: str, measured: float, planned: float) -> Row:
    return Row(case.group, case.era, case.gpu, case.quant, kind, measured, planned)


def band(rows: Sequence[Row]) -> Band:
    """`_TAIL` at each end of measured over planned, less of few rows or groups, which say little of what others are.

    A group of a hundred rows weighs ten times one of a single row.
    """
    counts = Counter(row.group for row in rows)
    tail = _TAIL_OF_FEW if len(rows) < _FEW_ROWS or len(counts) < _FEW_GROUPS else _TAIL
    weighed = sorted((row.ratio, counts[row.group] ** -0.5) for row in rows)
    whole = sum(weight for _, weight in weighed)
    found, below = [], 0.0
    for ratio, weight in weighed:
        below += weight
        if below >= tail * whole and not found:
            found.append(ratio)
        if below >= (1 - tail) * whole:
            found.append(ratio)
            break
    return Band(found[0], found[-1])


@dataclass(frozen=True)
class Bands:
    """By engine and metric, and the factor by which those of a borrowed card are wider."""

    of: Mapping[tuple[str, Metric], Band]
    borrowed: float = 1.0

    def around(self, row: Row) -> Band | None:
        """Of a row; None where its kind is in no table."""
        metric = METRIC[row.kind]
        found = self.of.get((row.engine, metric)) or self.of.get(("other", metric))
        wider = self.borrowed if row.is_borrowed and row.engine == "other" else 1.0
        return found and Band(found.low / wider, found.high * wider)


def bands(rows: Sequence[Row]) -> Bands:
    """Of each engine and metric where there are enough rows: the library's own, and those of all others together.

    Made of cards with kernels of their own where these are enough; then wider for the borrowed ones, until enough of
    their rows are inside.
    """
    groups: dict[tuple[str, Metric], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.engine, METRIC[row.kind]].append(row)
    kept = {key: band(_own(group)) for key, group in groups.items() if len(group) >= _FEWEST}
    lent = [row for row in rows if row.is_borrowed and row.engine == "other"]
    factor = _LEAST_BORROWED
    while lent and factor < _MOST_BORROWED:
        if _inside(lent, Bands(kept, factor)) >= _BORROWED_INSIDE:
            break
        factor += _STEP
    return Bands(kept, round(factor, 2))


def _own(rows: Sequence[Row]) -> Sequence[Row]:
    own = [row for row in rows if not row.is_borrowed]
    return own if len(own) >= _FEW_ROWS else rows


def _inside(rows: Sequence[Row], some: Bands) -> float:
    """The share of rows inside, groups weighed as a band weighs them."""
    counts, inside, whole = Counter(row.group for row in rows), 0.0, 0.0
    for row in rows:
        found, weight = some.around(row), counts[row.group] ** -0.5
        whole += weight
        inside += weight * (found is not None and found.low <= row.ratio <= found.high)
    return inside / whole


def covered(rows: Sequence[Row], band_for: Callable[[Row], Band]) -> float:
    """The share of rows inside."""
    inside = sum(band_for(row).low <= row.ratio <= band_for(row).high for row in rows)
    return inside / len(rows)


def unseen_band(rows: Sequence[Row]) -> Callable[[Row], Band]:
    """The band of each row, made without its group; where that leaves no table of its kind, the kept one."""
    without = {group: bands([row for row in rows if row.group != group]) for group in {row.group for row in rows}}
    return lambda row: without[row.group].around(row) or kept_band(row)


def kept_band(row: Row) -> Band:
    """The band of configs/speed.toml."""
    return band_of(METRIC[row.kind], row.era, is_borrowed=row.is_borrowed)


def show_coverage(rows: Sequence[Row]) -> None:
    unseen = unseen_band(rows)
    title = "coverage of the bands (nine of ten are meant to be inside)"
    print(f"\n{title:<58} rows  configs/speed.toml  made without the group")
    kinds = sorted({f"{row.engine}, {row.kind}" for row in rows})
    for name in ("", *METRIC, "borrowed card", "card of its own", *kinds):
        some = [row for row in rows if name in ("", row.kind, f"{row.engine}, {row.kind}", _card_kind(row))]
        if some:
            shares = f"{100 * covered(some, kept_band):12.0f} %           {100 * covered(some, unseen):12.0f} %"
            print(f"{name or 'all':<58} {len(some):4d} {shares}")


def _card_kind(row: Row) -> str:
    return "borrowed card" if row.is_borrowed else "card of its own"


def show(title: str, rows: Sequence[Row], key: Callable[[Row], str]) -> None:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    print(f"\n{title:<44} rows  median  bias  in 25 %   p10..p90 of measured / planned")
    for name, group in sorted(groups.items()):
        errors, ratios = sorted(abs(row.error) for row in group), sorted(row.ratio for row in group)
        bias, inside = percentile(sorted(row.error for row in group), 0.5), sum(error <= 0.25 for error in errors)
        spread = f"{percentile(ratios, 0.1):.2f}..{percentile(ratios, 0.9):.2f}"
        print(
            f"{name:<44} {len(group):4d} {100 * percentile(errors, 0.5):6.1f}% {100 * bias:+5.0f}% "
            f"{100 * inside / len(group):6.0f}%   {spread}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--folds", action="store_true")
    parser.add_argument("--bands", action="store_true")
    arguments = parser.parse_args()
    if arguments.bands:
        found = bands(folds())
        print(f"[bands] borrowed = {found.borrowed:.2f}")
        for (engine, metric), one in sorted(found.of.items()):
            print(f"[bands.{engine}] {metric} = [{one.low:.2f}, {one.high:.2f}]")
        return
    rows = folds() if arguments.folds else published(arguments.all)
    if not arguments.folds:
        print(f"Speed against {len(rows)} published figures")
        show("kind", rows, lambda row: row.kind)
    if not arguments.all:
        left_out = rows if arguments.folds else folds()
        print(f"\nSpeed against {len(left_out)} published figures, each of a card with a release that was left out")
        show("kind, left out", left_out, lambda row: row.kind)
        show_coverage(left_out)
    show("engine, kind", rows, lambda row: f"{row.era}, {row.kind}")
    show("engine, card, kind", rows, lambda row: f"{row.era}, {row.gpu}, {row.kind}")
    show("engine, quantization, kind", rows, lambda row: f"{row.era}, {row.quant}, {row.kind}")


if __name__ == "__main__":
    main()
