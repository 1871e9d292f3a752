"""What qserve adds to a TRL run: `qserve train` against `accelerate launch` of TRL's own script, in turns.

    python bench/training_overhead.py                    # 3 turns of 30 steps of the demo, 4 minutes
    python bench/training_overhead.py --turns 5 --steps 60
    python bench/training_overhead.py --tight-heap       # as where the plan leaves the heap no space to grow

Both run the same train.yaml, which qserve wrote. Compared are the seconds of the trainer's own loop (train_runtime),
which hold all that qserve adds to a step: measuring, telling, the rows' numbers. Prints every turn and the ratio of the
medians.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from qserve.demo.preferences import write_held_out
from qserve.training.launch import TIGHT_HEAP

LIMIT_S = 600
RUNTIME = re.compile(r"'train_runtime': '?([0-9.]+)")


def by_qserve(folder: Path, number: int, steps: int, heap: Mapping[str, str]) -> tuple[float, Path]:
    """(seconds of the loop, output folder)."""
    output = folder / f"qserve-{number}"
    command = [
        sys.executable, "-m", "qserve", "train", "sft", "--model", "demo", "--data", str(folder / "rows.jsonl"),
        "--gpu", "none", "--eval-share", "0", "--max-steps", str(steps), "--save-steps", str(10 * steps),
        "--micro-batch", "32", "--max-length", "256", "--output", str(output), "--state-dir", str(folder / "state"),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL, env={**os.environ, **heap})
    return _runtime((output / "run/train.log").read_text()), output


def by_hand(folder: Path, number: int, written: Path) -> float:
    """The same files through TRL's own script, with the heap as the user's shell has it."""
    settings = yaml.safe_load((written / "run/train.yaml").read_text())
    settings["output_dir"] = str(folder / f"hand-{number}")
    file = folder / f"hand-{number}.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(written / "run/accelerate.yaml"),
        "-m", "trl.scripts.sft", "--config", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, timeout=LIMIT_S, capture_output=True, text=True)
    return _runtime(done.stdout + done.stderr)


def _runtime(log: str) -> float:
    return float(RUNTIME.findall(log)[-1])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tight-heap", action="store_true", help="of the run by qserve")
    args = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    seconds: dict[str, list[float]] = {"qserve": [], "by hand": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_held_out(folder / "pairs.jsonl", 100)
        pairs = map(json.loads, (folder / "pairs.jsonl").read_text().splitlines())
        rows = ({"prompt": one["prompt"], "completion": one["chosen"]} for one in pairs)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for number in range(args.turns):
            ours, written = by_qserve(folder, number, args.steps, TIGHT_HEAP if args.tight_heap else {})
            theirs = by_hand(folder, number, written)
            seconds["qserve"].append(ours)
            seconds["by hand"].append(theirs)
            print(f"turn {number + 1}: qserve {ours:.2f} s, by hand {theirs:.2f} s", flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"medians {medians}: qserve takes {medians['qserve'] / medians['by hand'] - 1:+.1%}")


if __name__ == "__main__":
    main()
