"""Says of every row of tests/golden/speed.csv whether it is judged, by rules that look at the rows alone.

    .venv/bin/python scripts/judge_speed_rows.py [--write]

Reasons that stand in the column already (given when the rows were collected) are kept. None of the rules knows what is
planned: a row is left out for what it says, or does not say, never for its error. `scripts/accuracy_speed.py --all`
judges every row that can be planned, whatever stands here.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROWS = Path(__file__).parent.parent / "tests" / "golden" / "speed.csv"
Row = dict[str, str]

REPEATED = "repeats {}"
OTHER_LAYOUT = "layout unclear: the figure of {}, which names other cards"
NO_CONCURRENCY = "concurrency unclear: the run's id names none"
ABOVE_PEAK = "faster than the cards' peak: the concurrency is of more cards than named"
SPECULATIVE = "speculative decoding, by the figures"
ODD = "first token: half a second for 137 tokens, odd by its own page"
_RULES = (REPEATED, OTHER_LAYOUT, NO_CONCURRENCY, ABOVE_PEAK, SPECULATIVE, ODD)

# Dense FLOP/s of a card in its narrowest format, and active weights of the models that the rule meets.
_PEAK = {"b200_sxm": 9.0e15, "gb200": 9.8e15, "h100_sxm": 1.98e15, "h200_sxm": 1.98e15, "b300_sxm": 1.35e16}
_ACTIVE = {"Qwen3-32B": 32e9, "A22B": 22e9, "A17B": 17e9, "A3B": 3e9}
# SGLang 0.5.9 with TP 4 and EP 1: a quarter faster than TP 8 in the same release, by two thirds faster than the next
# release on the same cards, and a fifth faster yet in answers of 8192 tokens than of 1024, where every other layout
# gains a twentieth: what drafted tokens do, and nothing else in the table does.
_DRAFTED = {"engine": "SGLang", "engine_version": "0.5.9", "quant": "fp8", "tp": "4"}


def reasons(rows: list[Row]) -> Iterator[str]:
    """The reason of each row, in order; "" for a row that is judged."""
    first: dict[tuple[str, ...], Row] = {}
    runs = _runs(rows)
    for row in rows:
        given = row["not_judged"]
        if given and not _is_ours(given):
            first.setdefault(_figure(row), row)
            yield given
            continue
        same = first.setdefault(_figure(row), row)
        yield _reason(row, same, runs[_run(row)])


def _reason(row: Row, same: Row, run: dict[str, float]) -> str:
    if re.search(r"_c_tp\d", row["notes"]):
        return NO_CONCURRENCY
    if _is_above_peak(row, run):
        return ABOVE_PEAK
    if same is not row and "origin" in row["notes"]:
        alike = all(same[name] == row[name] for name in ("n_gpu", "tp"))
        return (REPEATED if alike else OTHER_LAYOUT).format(same["id"])
    if all(row[name] == value for name, value in _DRAFTED.items()) and "moe_tp=4 moe_ep=1" in row["notes"]:
        return SPECULATIVE
    return ODD if "ttft" in row["metric"] and "is odd" in row["notes"] else ""


def _is_ours(reason: str) -> bool:
    return any(reason.startswith(rule.partition("{")[0]) for rule in _RULES)


def _figure(row: Row) -> tuple[str, ...]:
    """What two rows of one measurement share; figures have fifteen digits."""
    names = ("model", "quant", "engine", "gpu", "input_tokens", "output_tokens", "concurrency", "metric", "value")
    return (*(row[name] for name in names), row["id"] if len(row["value"]) < 10 else "")


def _run(row: Row) -> tuple[str, ...]:
    return row["source"], row["notes"], row["input_tokens"], row["output_tokens"], row["concurrency"]


def _runs(rows: list[Row]) -> dict[tuple[str, ...], dict[str, float]]:
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row["metric"] in ("ttft", "tpot"):
            found[_run(row)][row["metric"]] = float(row["value"])
    return found


def _is_above_peak(row: Row, run: dict[str, float]) -> bool:
    """Prompts alone, at so many streams with these latencies, would take more than all cards can multiply."""
    weights = next((value for part, value in _ACTIVE.items() if part in row["model"]), None)
    if len(run) < 2 or weights is None or row["gpu"] not in _PEAK or not row["concurrency"]:
        return False
    seconds = (run["ttft"] + run["tpot"] * (float(row["output_tokens"]) - 1)) / 1000
    flop = float(row["concurrency"]) / seconds * float(row["input_tokens"]) * 2 * weights
    return flop > int(row["n_gpu"] or row["tp"] or 1) * _PEAK[row["gpu"]]


def main() -> None:
    with ROWS.open() as file:
        reader = csv.DictReader(file)
        names, rows = list(reader.fieldnames or ()), list(reader)
    found = list(reasons(rows))
    changed = [now for row, now in zip(rows, found, strict=True) if now != row["not_judged"]]
    for reason, count in Counter(re.sub(r"s\d+", "s…", now) for now in changed).most_common():
        print(f"{count:5d} rows now: {reason or 'judged'}")
    print(f"{found.count('')} of {len(rows)} rows are judged")
    if "--write" in sys.argv:
        with ROWS.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows({**row, "not_judged": reason} for row, reason in zip(rows, found, strict=True))


if __name__ == "__main__":
    main()
