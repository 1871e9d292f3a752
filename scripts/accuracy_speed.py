"""Prints how far planned speed is from published figures, by kind of figure, and by engine, card and quantization.

    .venv/bin/python scripts/accuracy_speed.py            the judged rows, with the table's constants
    .venv/bin/python scripts/accuracy_speed.py --all      every row that can be planned, the left out ones, too
    .venv/bin/python scripts/accuracy_speed.py --folds    rows of sources that the constants were not fitted to
    .venv/bin/python scripts/accuracy_speed.py --bands    bands from the folds, as configs/speed.toml has them

Folds are kept in tests/golden/speed_folds.csv (`fit_speed_engines.py ERA --folds`, one era after the other). A band is
from p8 to p92 of measured over planned in them, where each source weighs as the root of its rows: so wide that bands
which are made without a source hold 80 % of its rows. Coverage is printed of the bands in configs/speed.toml, and of
bands that are made without the source that they are held against.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from qserve.planner.speed.bands import Band, Metric, band_of
from qserve.planner.speed.figures import percentile
from tests.golden.speed import Case, Held, cases, compare

FOLDS = Path(__file__).parent.parent / "tests" / "golden" / "speed_folds.csv"
METRIC: dict[str, Metric] = {
    "tpot": "tpot",
    "ttft at one stream": "ttft_one",
    "ttft above": "ttft",
    "throughput": "throughput",
    "saturated": "saturated",
}
UNFITTED = ("trtllm", "vllm-v1")
"""Eras of which all but a few rows are of one source: in its fold they stand on what was published of the engine, as an
era does that nobody published figures of."""
_TAIL = 0.08
_FEWEST = 12
"""Of fewer rows no band is made: those of all engines together stand in."""


@dataclass(frozen=True)
class Row(Held):
    source: str
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
    return Row(case.source, case.era, case.gpu, case.quant, kind, measured, planned)


def band(rows: Sequence[Row]) -> Band:
    """`_TAIL` at each end of measured over planned; a source of a hundred rows weighs ten times one of a single row."""
    counts = Counter(row.source for row in rows)
    weighed = sorted((row.ratio, counts[row.source] ** -0.5) for row in rows)
    whole = sum(weight for _, weight in weighed)
    found, below = [], 0.0
    for ratio, weight in weighed:
        below += weight
        if below >= _TAIL * whole and not found:
            found.append(ratio)
        if below >= (1 - _TAIL) * whole:
            found.append(ratio)
            break
    return Band(found[0], found[-1])


def bands(rows: Sequence[Row]) -> dict[tuple[str, Metric], Band]:
    """Of each engine and metric, where there are enough rows.

    Of "other" all rows but the library's, of "unfitted" those of eras that nothing but their own source was fitted to.
    """
    groups: dict[tuple[str, Metric], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.engine, METRIC[row.kind]].append(row)
        if row.era in UNFITTED:
            groups["unfitted", METRIC[row.kind]].append(row)
    return {key: band(group) for key, group in groups.items() if len(group) >= _FEWEST}


def covered(rows: Sequence[Row], band_for: Callable[[Row], Band]) -> float:
    """The share of rows inside."""
    inside = sum(band_for(row).low <= row.ratio <= band_for(row).high for row in rows)
    return inside / len(rows)


def show_coverage(rows: Sequence[Row]) -> None:
    without = {source: bands([row for row in rows if row.source != source]) for source in {row.source for row in rows}}

    def unseen(row: Row) -> Band:
        found = without[row.source]
        key = METRIC[row.kind]
        return found.get((row.engine, key)) or found.get(("other", key)) or kept(row)

    def kept(row: Row) -> Band:
        return band_of(METRIC[row.kind], row.era, is_borrowed=False)

    title = "coverage of the bands (80 % are meant to be inside)"
    print(f"\n{title:<58} rows  configs/speed.toml  made without the source")
    for name in ("", *METRIC, *sorted({f"{row.engine}, {row.kind}" for row in rows})):
        some = [row for row in rows if name in ("", row.kind, f"{row.engine}, {row.kind}")]
        if some:
            shares = f"{100 * covered(some, kept):12.0f} %           {100 * covered(some, unseen):12.0f} %"
            print(f"{name or 'all':<58} {len(some):4d} {shares}")


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
    rows = folds() if arguments.folds or arguments.bands else published(arguments.all)
    if arguments.bands:
        for (engine, metric), one in sorted(bands(rows).items()):
            print(f"[bands.{engine}] {metric} = [{one.low:.2f}, {one.high:.2f}]")
        return
    print(f"Speed against {len(rows)} published figures" + (", each of a source left out" if arguments.folds else ""))
    show("kind", rows, lambda row: row.kind)
    if arguments.folds:
        show_coverage(rows)
    show("engine, kind", rows, lambda row: f"{row.era}, {row.kind}")
    show("engine, card, kind", rows, lambda row: f"{row.era}, {row.gpu}, {row.kind}")
    show("engine, quantization, kind", rows, lambda row: f"{row.era}, {row.quant}, {row.kind}")


if __name__ == "__main__":
    main()
