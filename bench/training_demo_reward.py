"""The demo's reward model trained again from its data by `qserve train reward`, and its accuracy on held-out pairs.

    python bench/training_demo_reward.py                       # a new head over the demo's body, minutes
    python bench/training_demo_reward.py --base chat --steps 1500 --learning-rate 1e-3    # all of it, most of an hour

The demo's own training (qserve/demo/train_reward.py) also asks at each token whether an answer is good so far, which no
trainer of pairs does: from the chat model, pairs alone take far longer. Exit status 1 below --least.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from safetensors.torch import load_file, save_file

from qserve.demo import chat_model_path, reward_model_path
from qserve.demo.preferences import sample_preference, write_held_out

LIMIT_S = 7200


def write_pairs(file: Path, num: int) -> None:
    """Pairs over questions of training: right over wrong, helpful over curt."""
    rng = Random(0)
    with file.open("w") as stream:
        for _ in range(num):
            pair = sample_preference(rng, 1)
            system = [{"role": "system", "content": pair.system}] if pair.system else []
            prompt = [*system, {"role": "user", "content": pair.question}]
            stream.write(json.dumps({"prompt": prompt, "chosen": pair.chosen, "rejected": pair.rejected[0]}) + "\n")


def body(folder: Path) -> Path:
    """The demo reward model without its head: transformers draws a new one."""
    shutil.copytree(reward_model_path(), folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop("score.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=("body", "chat"), default="body")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", default="1e-2")
    parser.add_argument("--num", type=int, default=20, help="held-out pairs of each of the 13 tasks")
    parser.add_argument("--least", type=float, default=0.95)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_pairs(folder / "pairs.jsonl", 32 * args.steps)
        write_held_out(folder / "held_out.jsonl", args.num)
        base = body(folder / "body") if args.base == "body" else chat_model_path()
        command = [
            sys.executable,
            "-m",
            "qserve",
            "train",
            "reward",
            "--model",
            str(base),
            "--gpu",
            "none",
            "--data",
            str(folder / "pairs.jsonl"),
            "--eval-data",
            str(folder / "held_out.jsonl"),
            "--max-steps",
            str(args.steps),
            "--eval-steps",
            str(args.steps),
            "--save-steps",
            str(args.steps),
            "--micro-batch",
            "32",
            "--max-length",
            "288",
            "--learning-rate",
            args.learning_rate,
            "--no-gradient-checkpointing",
            "--output",
            str(folder / "model"),
            "--state-dir",
            str(folder / "state"),
            *(["--freeze-base"] if args.base == "body" else []),
        ]
        began_s = time.monotonic()
        subprocess.run(command, check=True, timeout=LIMIT_S)
        events = map(json.loads, (folder / "model/run/events.jsonl").read_text().splitlines())
        (event,) = [one for one in events if one["event"] == "held out"]
    share = event["right"] / event["pairs"]
    print(f"{event['right']} of {event['pairs']} held-out pairs right: {share:.1%}, {time.monotonic() - began_s:.0f} s")
    sys.exit(share < args.least)


if __name__ == "__main__":
    main()
