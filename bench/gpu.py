"""One script for a machine with a card: are memory and speed as planned, is every kernel right, what do services give?

    python bench/gpu.py                              # all rows within 9 minutes, the most worth first
    python bench/gpu.py --only kernels bf16 --budget-s 300
    python bench/gpu.py --device cpu --shapes tiny   # every line of it in a minute or two; the figures mean nothing
    python bench/gpu.py --page gpu-*.json            # writes docs/results/gpu.md and gpu-constants.toml from results

Rows of the engine need torch, transformers and accelerate, no network and no weights: shapes run on random ones. What
needs a package that is missing, or more time than is left, is skipped and named. Rows run in a process of their own, so
that one that crashes or hangs costs itself alone, and the files are written after each, to --out [$OUT, where it is
set]. Exit status: 0 well, or no card; 1 something is not right.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path[0] = str(ROOT)  # not bench/, whose files have common names

from bench.gpu_steps.order import GROUPS, Row, rows_of  # noqa: E402  # after the path
from bench.gpu_steps.run import Run  # noqa: E402
from bench.gpu_steps.steps import StepProcess  # noqa: E402

_NEEDED = ("torch", "transformers", "accelerate", "safetensors")
# The first row imports torch, maybe from a cold disk.
_BEGIN_S, _LIMITS_S, _END_S = 180, 60, 60
# Failures of one model or service after which its other rows are left out: each would load it again.
_MOST_FAILURES = 2
_SUBJECT = ("model", "scheme", "engine", "reward")  # of rows that share what is loaded


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shapes", default="real", choices=["real", "tiny"])
    parser.add_argument("--budget-s", type=float, default=540, help="seconds for all rows [540]")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=[], metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "docs" / "results"))
    parser.add_argument("--page", nargs="+", type=Path, metavar="JSON", help="write the page from these results")
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  # it is run by whatever Python there is
        print(f"gpu: qserve needs Python 3.11, this is {sys.version.split()[0]}; nothing was measured")
        return 0
    if args.page:
        from bench.gpu_steps.page import write_page

        print("written: " + ", ".join(map(str, write_page(args.page, ROOT / "docs" / "results"))))
        return 0
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        print(f"gpu: {', '.join(missing)} not installed here; nothing was measured")
        return 0
    os.environ["HF_HUB_OFFLINE"] = "1"
    child = [sys.executable, str(ROOT / "bench" / "gpu_steps" / "child.py"), args.device]
    with tempfile.TemporaryDirectory(prefix="qserve-gpu-") as scratch:
        os.environ["QSERVE_GPU_SCRATCH"] = scratch
        with StepProcess(child) as steps:
            return measure(steps, args)


def measure(steps: StepProcess, args: argparse.Namespace) -> int:
    """All rows; after each the JSON and the table are written."""
    run = Run(args.budget_s, args.out)
    about = steps.ask({"do": "begin"}, _BEGIN_S)
    if "error" in about:
        print(f"gpu: can't begin: {about['error']}; nothing was measured")
        return 1
    if "no_card" in about:
        print(f"gpu: {about['no_card']}; nothing was measured (--device cpu tries the script itself)")
        return 0
    run.begin(about)
    try:
        _limits(run, steps, args.shapes)
        measure_rows(run, steps, rows_of(args.shapes, tuple(args.only)))
    except KeyboardInterrupt:
        run.add("machine", {"what": "the rest", "ok": None, "skipped": "interrupted"})
    run.end()
    return 0 if run.is_well else 1


def _limits(run: Run, steps: StepProcess, shapes: str) -> None:
    ask = {"do": "limits", "size_bytes": 2**20 if shapes == "tiny" else None}
    run.result["limits"] = run.attempt("machine", {"what": "limits"}, partial(steps.ask, ask), _LIMITS_S)
    has_pages = run.result["batcher"] == "PagedBatcher"
    row: dict[str, Any] = {"what": "batcher", "batcher": run.result["batcher"], "ok": has_pages}
    if not has_pages:
        row["error"] = f"{_row_batcher(run)}: figures of its speed would be another engine's, and are left out"
    run.add("machine", row)


def measure_rows(run: Run, steps: StepProcess, rows: list[Row]) -> None:
    """Each in turn, but for those whose model or service has failed."""
    failures: Counter[tuple[object, ...]] = Counter()
    without: dict[tuple[object, ...], str] = {}
    for row in rows:
        shared = tuple(value for key, value in row.what.items() if key in _SUBJECT)
        subject = (row.group, *(shared or row.what.values()))
        lacks = without.get(subject) or _lacks(row, run)
        if failures[subject] >= _MOST_FAILURES:
            lacks = lacks or f"{_MOST_FAILURES} rows before it failed"
        if row.fresh and not lacks and "device" in run.result:
            steps.ask({"do": "end"}, _END_S)  # what a service holds of the card is free before the next one plans
            steps.fresh()  # and what the process itself keeps of it
        done = run.attempt(row.group, row.what, partial(steps.ask, _asked(row, run)), row.most_s, row.needs_s, lacks)
        if lacks is None:
            failures[subject] = failures[subject] + 1 if "error" in done else 0
        if row.ask["do"] == "service_start" and ("error" in done or "skipped" in done):
            without[subject] = done.get("skipped") or "the service did not start"


def _asked(row: Row, run: Run) -> dict[str, Any]:
    """With what only this run knows."""
    ask = dict(row.ask)
    if ask["do"] == "kernel":
        ask["read_bytes_per_s"] = run.read_bytes_per_s
    if ask["do"] == "service_start":
        ask |= {"log": str(run.log_path), "limit_s": min(ask["limit_s"], max(1.0, run.left_s))}
    return ask


def _lacks(row: Row, run: Run) -> str | None:
    """Why it can't run here."""
    found = run.result
    if row.package in ("serve", "vllm") and found["lacks_to_serve"]:
        return f"{', '.join(found['lacks_to_serve'])} not installed, which `qserve up` needs"
    if row.package not in ("", "serve") and not found["optional_packages"].get(row.package):
        return f"{row.package} is not installed"
    if row.least_cc is not None and (reason := _lacks_fp8(row.least_cc, found)):
        return reason
    own_speed = row.is_of_speed or row.what.get("engine") == "transformers"
    return _row_batcher(run) if own_speed and found["batcher"] != "PagedBatcher" else None


def _lacks_fp8(least_cc: tuple[int, int], found: dict[str, Any]) -> str:
    """Empty where there is such a card."""
    if "device" not in found:
        return "needs a card: weights in fp8 are made, and multiplied by, on cards alone"
    capability = found["device"]["compute_capability"]
    if tuple(map(int, capability.split("."))) >= least_cc:
        return ""
    return f"weights in fp8 need compute capability {least_cc[0]}.{least_cc[1]}, and this card has {capability}"


def _row_batcher(run: Run) -> str:
    release = run.result["versions"]["transformers"]
    return f"transformers {release} runs the row batcher, 5.19 the paged one (bench/gpu_kit.py brings it)"


if __name__ == "__main__":
    sys.exit(main())
