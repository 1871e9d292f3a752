"""Error of the planner per term, engine and release, against the published figures of tests/golden.

    python scripts/accuracy.py [--rows]

Nine tables: the figures that the constants were taken from and held against, and eight hold-outs of logs that nobody
had seen, each collected after what the one before it showed had been changed. They print the errors of today's planner;
those of the first look stand in docs/results/planner.md.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.golden.accuracy import (
    EIGHTH,
    FIFTH,
    FOURTH,
    HOLDOUT,
    MEASUREMENTS,
    SECOND,
    SEVENTH,
    SIXTH,
    THIRD,
    Comparison,
    Skipped,
    compare_all,
)

_TABLES = (
    ("Published figures", MEASUREMENTS, None),
    ("Hold-out: showed what was wrong", HOLDOUT, "first"),
    ("Second hold-out: causes that vLLM's source confirms were changed after it", HOLDOUT, SECOND),
    ("Third hold-out: causes that vLLM's source confirms were changed after it", HOLDOUT, THIRD),
    ("Four starts read after that: one constant was changed after them", HOLDOUT, FOURTH),
    ("Fifth hold-out: causes that vLLM's source confirms were changed after it", HOLDOUT, FIFTH),
    ("Sixth hold-out: as it came, nothing was changed after it", HOLDOUT, SIXTH),
    ("Seventh hold-out", HOLDOUT, SEVENTH),
    ("Eighth hold-out: CUDA graphs of cards without P2P", HOLDOUT, EIGHTH),
)


def main() -> None:
    for title, file, part in _TABLES:
        print(f"== {title} ({file}) ==")
        results = list(compare_all(file, part))
        compared = [item for item in results if isinstance(item, Comparison)]
        _print_table(compared)
        if "--rows" in sys.argv:
            _print_rows(compared)
        print("\nLeft out of the first figures (column left_out):")
        for item in compared:
            if item.row.left_out:
                print(f"  {item.row.id} {item.row.model} {item.term}: {item.error:+.1%}; {item.row.left_out}")
        print("\nNot compared:")
        for reason, count in Counter(item.reason for item in results if isinstance(item, Skipped)).most_common():
            print(f"  {count:3d} × {reason}")
        print()


def _print_table(compared: list[Comparison]) -> None:
    """Each figure without the rows that are left out, and with them."""
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for item in compared:
        groups[item.term, item.group].append(item)
    columns = f"{'rows':>5s} {'mean':>8s} {'worst':>8s}"
    print(f"{'term':28s} {'engine':22s} {columns}  {'worst row':32s} with those left out: {columns}")
    for (term, group), items in sorted(groups.items()):
        kept = [item for item in items if item.row.left_out is None]
        worst = _worst(kept)
        named = f"{worst.row.id} {worst.row.model}" if worst else ""
        everything = _figures(items) if len(items) > len(kept) else ""
        print(f"{term:28s} {group:22s} {_figures(kept)}  {named:32s} {'':20s} {everything}".rstrip())


def _figures(items: list[Comparison]) -> str:
    worst = _worst(items)
    if worst is None:
        return f"{0:5d} {'–':>8s} {'–':>8s}"
    mean = sum(abs(item.error) for item in items) / len(items)
    return f"{len(items):5d} {mean:8.2%} {worst.error:+8.2%}"


def _worst(items: list[Comparison]) -> Comparison | None:
    return max(items, key=lambda item: abs(item.error), default=None)


def _print_rows(compared: list[Comparison]) -> None:
    for item in compared:
        print(
            f"{item.row.id} {item.row.model:32s} {item.term:26s} {item.group:18s} planned {item.planned:12.3f} "
            f"measured {item.measured:12.3f} {item.error:+8.2%}"
        )


main()
