"""Processor milliseconds of plans for a load, each in a process that has planned before, beside an older checkout.

    python bench/plan_time.py                            # this checkout
    python bench/plan_time.py --before ../old --rounds 7 # in turns with it: ratios, and whether plans are equal
    python bench/plan_time.py --start                    # from the start of a process to its end, bytecode kept and not

Rows: one layout that every flag fixes, and whole searches as docs/results/speed.md reads them. What a plan takes is the
least of three in a row, which others disturb least; a row is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_LOAD = ["--input", "1000", "--output", "300"]
ROWS = {
    "one layout": [
        "--model",
        "Qwen/Qwen3-32B",
        "--gpu",
        "h100:4",
        "--quant",
        "bf16",
        "--tensor-parallel-size",
        "4",
        "--replicas",
        "1",
        *_LOAD,
        "--rps",
        "12",
    ],
    "8 × H100, targets": [
        "--model",
        "Qwen/Qwen3-32B",
        "--gpu",
        "h100:8",
        *_LOAD,
        "--rps",
        "12",
        "--ttft",
        "1s",
        "--tpot",
        "50ms",
    ],
    "8 × H100, 64 streams": ["--model", "Qwen/Qwen3-32B", "--gpu", "h100:8", *_LOAD, "--concurrency", "64"],
    "1 × 4090, ways out": [
        "--model",
        "Qwen/Qwen3-32B",
        "--gpu",
        "rtx-4090",
        "--users",
        "30",
        "--ttft",
        "3s",
        "--tpot",
        "60ms",
    ],
    "any card, 30 users": ["--model", "Qwen/Qwen3-32B", "--gpu", "any", *_LOAD, "--users", "30"],
    "2 × 3090, experts": ["--model", "Qwen/Qwen3-30B-A3B", "--gpu", "rtx-3090:2", "--concurrency", "8"],
    "1 × L40S, no load": ["--model", "Qwen/Qwen3.6-27B", "--gpu", "l40s"],
}
_CHILD = """
import contextlib, hashlib, io, json, sys, time
from qserve.cli.main import cli
rows, found = json.load(sys.stdin), {}
for name, words in rows.items():
    taken = []
    for _ in range(4):
        printed = io.StringIO()
        began = time.process_time()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            try:
                cli.main(["plan", *words, "--no-learn", "--json"], standalone_mode=False)
            except SystemExit:
                pass
        taken.append(1000 * (time.process_time() - began))
    found[name] = min(taken[1:]), hashlib.sha256(printed.getvalue().encode()).hexdigest()
json.dump(found, sys.stdout)
"""


def timed(checkout: Path) -> dict[str, tuple[float, str]]:
    """By row the milliseconds and a digest of the plan, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(ROWS),
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        check=True,
    )
    return {name: (ms, digest) for name, (ms, digest) in json.loads(done.stdout).items()}


def whole_ms(checkout: Path, words: list[str], cache: str | None) -> float:
    """Processor milliseconds of a process; without a `cache` Python compiles what it imports each time."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    for name in ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(name, None)
    environment |= {"PYTHONPYCACHEPREFIX": cache} if cache else {"PYTHONDONTWRITEBYTECODE": "1"}
    if not cache:
        environment["PYTHONPYCACHEPREFIX"] = os.devnull
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], capture_output=True, env=environment, check=False, cwd=checkout)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)


def show_starts(checkouts: list[Path], rounds: int) -> None:
    """`qserve plan` as somebody types it, and what Python and its imports are of that; the least of the rounds."""
    asked = ["-m", "qserve", "plan", "--no-learn", *ROWS["8 × H100, targets"]]
    what = {
        "python -c pass": ["-c", "pass"],
        "qserve --version": ["-m", "qserve", "--version"],
        "imports of qserve plan": ["-c", "import qserve.cli.plan.command"],
        "8 × H100, targets": asked,
        "8 × H100, targets, --json": [*asked, "--json"],
    }
    with tempfile.TemporaryDirectory() as folder:
        caches = [f"{folder}/{place}" for place in range(len(checkouts))]
        for words in what.values():
            for checkout, cache in zip(checkouts, caches, strict=True):
                whole_ms(checkout, words, cache)
        print(f"{'ms, bytecode kept (compiled anew)':36}{'':>16}" + (f"{'before':>18}" if len(checkouts) > 1 else ""))
        for name, words in what.items():
            taken = [
                [
                    (whole_ms(one, words, cache), whole_ms(one, words, None))
                    for one, cache in zip(checkouts, caches, strict=True)
                ]
                for _ in range(rounds)
            ]
            least = [[min(turn[place][kind] for turn in taken) for kind in (0, 1)] for place in range(len(checkouts))]
            print(f"{name:36}" + "".join(f"{kept:>9.0f} ({anew:.0f})" for kept, anew in least))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="an older one, in turns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start", action="store_true", help="whole processes")
    args = parser.parse_args()
    here = Path(__file__).resolve().parent.parent
    checkouts = [here, *([args.before.resolve()] if args.before else [])]
    if args.start:
        show_starts(checkouts, args.rounds)
        return
    rounds = [[timed(one) for one in checkouts] for _ in range(args.rounds)]
    print(f"{'':24}{'ms':>8}" + (f"{'before':>10}{'ratio':>8}" if args.before else ""))
    for name in ROWS:
        ours = statistics.median(one[0][name][0] for one in rounds)
        line = f"{name:24}{ours:>8.1f}"
        if args.before:
            theirs = statistics.median(one[1][name][0] for one in rounds)
            ratio = statistics.median(one[1][name][0] / one[0][name][0] for one in rounds)
            same = "" if rounds[0][0][name][1] == rounds[0][1][name][1] else "  another plan"
            line += f"{theirs:>10.1f}{ratio:>8.2f}{same}"
        print(line)


if __name__ == "__main__":
    main()
