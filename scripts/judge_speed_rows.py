"""Says of every row of tests/golden/speed.csv whether it is judged, by rules that look at the rows alone.

    .venv/bin/python scripts/judge_speed_rows.py [--write]

Reasons that stand in the column already (given when the rows were collected) are kept. None of the rules knows what is
planned: a row is left out for what it says, or does not say, never for its error. `scripts/accuracy_speed.py --all`
judges every row that can be planned, whatever stands here.
"""

from __future__ import annotations

import csv
import math
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
SPECULATIVE = "speculative decoding: InferenceX ran TP 4 with EP 1 of 0.5.9 as qwen3.5-fp8-b200-sglang-mtp alone"
ODD = "first token: half a second for 137 tokens, odd by its own page"
_RULES = (REPEATED, OTHER_LAYOUT, NO_CONCURRENCY, ABOVE_PEAK, SPECULATIVE, ODD)

# Dense FLOP/s of a card in its narrowest format, and active weights of the models that the rule meets.
_PEAK = {"b200_sxm": 9.0e15, "gb200": 9.8e15, "h100_sxm": 1.98e15, "h200_sxm": 1.98e15, "b300_sxm": 1.35e16}
_ACTIVE = {"Qwen3-32B": 32e9, "A22B": 22e9, "A17B": 17e9, "A3B": 3e9}
# InferenceX served this model on SGLang 0.5.9 with TP 4 and EP 1 as qwen3.5-fp8-b200-sglang-mtp alone: EAGLE, 3 steps,
# 4 drafted tokens, 4 to 256 streams, the lengths of these rows (.github/configs/nvidia-master.yaml from its commit
# 35d4bb3 of 2026-03-20 on; without drafts it ran TP 8 with EP 1 and TP 4 with EP 4: commits efd49e5 and 51e31df). The
# rows of B300, of the same day, have the same three layouts with the same streams.
_DRAFTED = {"engine": "SGLang", "engine_version": "0.5.9", "quant": "fp8", "tp": "4"}
_ROUNDED = 0.0051
"""Of figures that are listed again with two decimals."""


def reasons(rows: list[Row]) -> Iterator[str]:
    """The reason of each row, in order; "" for a row that is judged."""
    first = _first_of_each(rows)
    runs = _runs(rows)
    for row in rows:
        given = row["not_judged"]
        yield given if _is_given(row) else _reason(row, first[row["id"]], runs[_run(row)])


def _is_given(row: Row) -> bool:
    """Whether the reason came with the row."""
    return bool(row["not_judged"]) and not _is_ours(row["not_judged"])


def _first_of_each(rows: list[Row]) -> dict[str, Row]:
    """By id: the row that stands for the figure. Of a run that others list again, the one of who ran it."""
    kept: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    found = {}
    for row in sorted(rows, key=lambda row: (_is_given(row), _is_copy(row))):
        alike = kept[_figure(row)]
        same = next((one for one in alike if _is_same(one, row)), row)
        if same is row:
            alike.append(row)
        found[row["id"]] = same
    return found


def _is_copy(row: Row) -> bool:
    """NVIDIA's gap analysis of Qwen3.5-397B: each of its 152 figures is one of InferenceX."""
    return "gap_analysis" in row["notes"]


def _is_same(one: Row, other: Row) -> bool:
    """Figures have fifteen digits, copies two decimals."""
    if "origin" not in one["notes"] or "origin" not in other["notes"]:
        return False
    values = float(one["value"]), float(other["value"])
    return math.isclose(*values, rel_tol=1e-9, abs_tol=_ROUNDED if _is_copy(one) != _is_copy(other) else 0.0)


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
    """What two rows of one measurement share, beside the value."""
    names = ("model", "quant", "engine", "gpu", "input_tokens", "output_tokens", "concurrency", "metric")
    return tuple(row[name] for name in names)


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
