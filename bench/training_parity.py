"""The same training by one process and by two: DDP and ZeRO 1 to 3 have the losses of one process.

    python bench/training_parity.py                      # about half a minute a way; ZeRO needs DeepSpeed
    python bench/training_parity.py --ways zero3

Six steps of the demo as a reward model, in fp32 on a CPU over gloo: one process takes two micro-batches a step, each of
two takes one. Prints the largest difference of a loss; exit status 1 where one is larger than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qserve.demo.preferences import write_held_out

WAYS = {
    "ddp": (),
    "zero1": ("--zero", "1"),
    "zero2": ("--zero", "2"),
    "zero3": ("--zero", "3"),
}
ALLOWED = 1e-4
LIMIT_S = 500


def losses(folder: Path, name: str, *flags: str) -> dict[int, float]:
    """By step, of `qserve train reward`."""
    output = folder / name
    command = [
        sys.executable, "-m", "qserve", "train", "reward", "--model", "demo", "--data", str(folder / "pairs.jsonl"),
        "--gpu", "none", "--precision", "fp32", "--max-steps", "6", "--eval-steps", "6", "--save-steps", "6",
        "--eval-share", "0", "--learning-rate", "1e-3", "--micro-batch", "2", "--max-length", "128",
        "--no-gradient-checkpointing", "--output", str(output), "--state-dir", str(folder / "state"), *flags,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        log = output / "run/train.log"
        raise RuntimeError(f"{name}: {done.stderr[-1000:]}{log.read_text()[-3000:] if log.exists() else ''}")
    events = map(json.loads, (output / "run/events.jsonl").read_text().splitlines())
    return {one["step"]: one["loss"] for one in events if one["event"] == "logged" and "loss" in one}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(WAYS), help="some of %(default)s")
    args = parser.parse_args()
    is_off = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_held_out(folder / "pairs.jsonl", 6)
        one = losses(folder, "one", "--gradient-accumulation-steps", "2")
        for way in args.ways.split(","):
            began_s = time.monotonic()
            two = losses(folder, way, "--gpus", "2", *WAYS[way])
            difference = max(abs(two[step] - loss) for step, loss in one.items())
            is_off |= difference > ALLOWED
            print(f"{way:<6} largest difference {difference:.1e}, {time.monotonic() - began_s:.0f} s", flush=True)
    sys.exit(is_off)


if __name__ == "__main__":
    main()
