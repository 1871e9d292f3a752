"""Error of `qserve plan train` per source and method, against the published figures of tests/golden."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.golden.training import TrainingComparison, compare_training


def main() -> None:
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    results = list(compare_training(*map(Path, named)))
    compared = [item for item in results if isinstance(item, TrainingComparison)]
    groups: dict[tuple[str, str], list[TrainingComparison]] = defaultdict(list)
    for item in compared:
        if item.untrusted is None:
            groups[item.source, item.what.split()[0]].append(item)
            groups["all", ""].append(item)
    print(f"{'source':14s} {'method':10s} {'rows':>5s} {'mean':>8s} {'worst':>8s}  worst row")
    for (source, method), items in sorted(groups.items(), key=lambda group: (group[0][0] == "all", group[0])):
        worst = max(items, key=lambda item: abs(item.error))
        mean = sum(abs(item.error) for item in items) / len(items)
        print(f"{source:14s} {method:10s} {len(items):5d} {mean:8.2%} {worst.error:+8.2%}  {worst.id} {worst.model}")
    if "--rows" in sys.argv:
        for item in compared:
            print(
                f"{item.id} {item.model:14s} {item.what:24s} planned {item.planned:7.2f} measured "
                f"{item.measured:7.2f} {item.unit} {item.error:+8.2%} {item.untrusted or ''}"
            )
    print("\nNot to be trusted (planned, not averaged):")
    for item in compared:
        if item.untrusted:
            print(f"  {item.id} {item.model} {item.what}: {item.error:+.1%}; {item.untrusted}")
    print("\nNot compared:")
    for result in results:
        if not isinstance(result, TrainingComparison):
            print(f"  {result[0]}: {result[1]}")


main()
