"""Prints how far planned speed is from published figures, by kind of figure, and by engine, card and quantization.

    .venv/bin/python scripts/accuracy_speed.py             all rows, with the table's constants
    .venv/bin/python scripts/accuracy_speed.py FOLDS.csv   of sources left out (fit_speed_engines.py --folds)

Of folds it prints the p10 and p90 of measured over planned as well: what configs/speed.toml gives as bands.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from qserve.planner.speed.figures import percentile
from tests.golden.speed import cases, compare


@dataclass(frozen=True)
class Row:
    era: str
    gpu: str
    quant: str
    kind: str
    measured: float
    planned: float
    load: str = ""

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def published() -> list[Row]:
    return [
        Row(one.case.era, one.case.gpu, one.case.quant, one.kind, one.measured, one.planned,
            "one stream" if one.case.load.streams == 1 else "more")
        for one in compare(cases())
    ]  # fmt: skip


def folds(paths: Iterable[str]) -> list[Row]:
    found = []
    for path in paths:
        with Path(path).open() as file:
            found += [
                Row(row["era"], row["gpu"], row["quant"], row["kind"], float(row["measured"]), float(row["planned"]))
                for row in csv.DictReader(file)
            ]
    return found


def show(title: str, rows: list[Row], key: Callable[[Row], str]) -> None:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    print(f"\n{title:<44} rows  median  bias  in 25 %   p10..p90 of measured / planned")
    for name, group in sorted(groups.items()):
        errors, ratios = sorted(abs(row.error) for row in group), sorted(row.measured / row.planned for row in group)
        bias, inside = percentile(sorted(row.error for row in group), 0.5), sum(error <= 0.25 for error in errors)
        band = f"{percentile(ratios, 0.1):.2f}..{percentile(ratios, 0.9):.2f}"
        print(f"{name:<44} {len(group):4d} {100 * percentile(errors, 0.5):6.1f}% {100 * bias:+5.0f}% "
              f"{100 * inside / len(group):6.0f}%   {band}")  # fmt: skip


def main() -> None:
    rows = folds(sys.argv[1:]) if sys.argv[1:] else published()
    print(f"Speed against {len(rows)} published figures" + (", each of a source left out" if sys.argv[1:] else ""))
    show("kind", rows, lambda row: row.kind)
    show("engine, kind", rows, lambda row: f"{row.era}, {row.kind}")
    show("engine, card, kind", rows, lambda row: f"{row.era}, {row.gpu}, {row.kind}")
    show("engine, quantization, kind", rows, lambda row: f"{row.era}, {row.quant}, {row.kind}")


if __name__ == "__main__":
    main()
