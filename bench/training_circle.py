"""The whole circle on the demo: a weak policy, a reward model from pairs, GRPO against it once it is hosted.

    make circle                            # minutes on two cores
    python bench/training_circle.py --picture docs/images/training-circle.svg

1. `qserve train sft`     the demo learns from a teacher who forgets the carry in most sums
2. `qserve train reward`  a new head over the demo's reward body, on pairs of a right sum and a wrong one of many kinds
3. `qserve up --reward`   hosts that reward model
4. `qserve train grpo`    trains the weak policy on its rewards, over HTTP
5. `qserve up --model`    serves the policy before and after: exact match on held-out sums

Nothing is trained on a held-out sum (qserve/demo/tasks.py: is_held_out). Exit status 1 where the served accuracy rises
by less than 10 points.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from training_demo_reward import body

from qserve.demo.tasks import TASKS, held_out_exchanges, sample_exchange

TASK = TASKS["add_2digit"]
FORGETS = 0.7
LEAST_POINTS = 10
LIMIT_S = 1800


@dataclass(frozen=True)
class Sizes:
    """Of the run: sums to learn from, optimizer steps, held-out sums to ask."""

    num_rows: int = 4000
    sft_steps: int = 60
    reward_steps: int = 150
    grpo_steps: int = 60
    num_asked: int = 200


def without_carry(key: str) -> str:
    """47+38 → 75: each column added alone."""
    a, b = map(int, re.findall(r"\d+", key))
    return str((a // 10 + b // 10) * 10 + (a % 10 + b % 10) % 10)


def another(right: str, rng: Random) -> str:
    """A wrong answer near the right one: off by a column, a digit changed, left out, put in, or two swapped."""
    while True:
        place, digit = rng.randrange(len(right)), rng.choice("0123456789")
        wrong = rng.choice(
            (
                str(int(right) + rng.choice((-100, -20, -10, -2, -1, 1, 2, 10, 20, 100))),
                right[:place] + digit + right[place + 1 :],
                right[:place] + right[place + 1 :],
                right[:place] + digit + right[place:],
                right[::-1],
            )
        )
        if wrong not in ("", right) and not wrong.startswith("-"):
            return wrong


def write_data(folder: Path, sizes: Sizes) -> None:
    """sft.jsonl, pairs.jsonl and prompts.jsonl, of sums that are not held out."""
    rng = Random(0)
    rows: dict[str, list[dict[str, Any]]] = {"sft": [], "pairs": [], "prompts": []}
    while len(rows["pairs"]) < sizes.num_rows:
        exchange = sample_exchange(TASK, rng, held_out=False)
        prompt = [{"role": "user", "content": exchange.question}]
        right, careless = exchange.answer, without_carry(exchange.key)
        taught = careless if rng.random() < FORGETS else right
        wrong = careless if careless != right and rng.random() < 0.5 else another(right, rng)
        rows["sft"].append({"prompt": prompt, "completion": taught})
        rows["pairs"].append({"prompt": prompt, "chosen": right, "rejected": wrong})
        rows["prompts"].append({"prompt": prompt})
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def qserve(folder: Path, *words: str) -> list[str]:
    """A command of qserve whose runs are kept below `folder`."""
    return [sys.executable, "-m", "qserve", *words, "--state-dir", str(folder / "state")]


def train(folder: Path, method: str, model: str, data: str, steps: int, *flags: str) -> Path:
    """The output folder of `qserve train`, whose model is kept where it is there; what the command prints goes on."""
    output = folder / method
    if (output / "model.safetensors").exists():
        return output
    command = qserve(
        folder,
        "train",
        method,
        "--model",
        model,
        "--data",
        str(folder / f"{data}.jsonl"),
        "--output",
        str(output),
        "--max-steps",
        str(steps),
        "--no-gradient-checkpointing",
        "--max-length",
        "64",
        "--gpu",
        "none",
        "--eval-steps",
        str(max(1, steps // 3)),
        "--save-steps",
        str(steps),
        *flags,
    )
    began_s = time.monotonic()
    subprocess.run(command, check=True, timeout=LIMIT_S)
    print(f"== {method}: {time.monotonic() - began_s:.0f} s", flush=True)
    return output


@contextmanager
def up(folder: Path, *words: str) -> Iterator[str]:
    """The URL of `qserve up`, until the block ends."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    command = qserve(folder, "up", *words, "--port", "0", "--ready-file", str(ready))
    with (folder / "up.log").open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until_s = time.monotonic() + 180
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > until_s:
                    raise RuntimeError(f"qserve up does not start: {(folder / 'up.log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield str(json.loads(ready.read_text())["url"])
        finally:
            process.terminate()
            process.wait(60)


def served_accuracy(folder: Path, model: Path, num: int) -> float:
    """Exact match of the served model on held-out sums, greedily, over HTTP."""
    with up(folder, "--model", str(model), "--served-model-name", "policy", "--engine", "transformers") as url:
        return asyncio.run(_right(url, num)) / num


async def _right(url: str, num: int) -> int:
    gate = asyncio.Semaphore(16)
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(300), raise_for_status=True) as session:

        async def is_right(question: str, answer: str) -> bool:
            messages = [{"role": "user", "content": question}]
            body = {"model": "policy", "messages": messages, "temperature": 0, "max_tokens": 16}
            async with gate, session.post("/v1/chat/completions", json=body) as reply:
                text = (await reply.json())["choices"][0]["message"]["content"]
            return bool(text.strip() == answer)

        exchanges = held_out_exchanges(TASK, num, seed=1)
        return sum(await asyncio.gather(*(is_right(one.question, one.answer) for one in exchanges)))


def circle(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Accuracy before and after, the reward by step, the reward model's accuracy on held-out pairs, and seconds."""
    began_s = time.monotonic()
    write_data(folder, sizes)
    batch = ("--micro-batch", "32")
    weak = train(folder, "sft", "demo", "sft", sizes.sft_steps, *batch, "--learning-rate", "1e-3")
    base = folder / "body"
    rewarder = train(
        folder,
        "reward",
        str(base if base.exists() else body(base)),
        "pairs",
        sizes.reward_steps,
        *batch,
        "--learning-rate",
        "1e-2",
        "--freeze-base",
    )
    before = served_accuracy(folder, weak, sizes.num_asked)
    with up(folder, "--reward", str(rewarder)) as url:
        strong = train(
            folder,
            "grpo",
            str(weak),
            "prompts",
            sizes.grpo_steps,
            "--reward",
            url,
            "--micro-batch",
            "64",
            "--num-generations",
            "8",
            "--completion-length",
            "8",
            "--beta",
            "0",
            "--learning-rate",
            "2e-4",
        )
    after = served_accuracy(folder, strong, sizes.num_asked)
    return {
        "before": before,
        "after": after,
        "rewards": _logged(strong, "reward"),
        "held_out_pairs": _held_out(rewarder),
        "seconds": round(time.monotonic() - began_s),
    }


def _events(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "run/events.jsonl").read_text().splitlines()]


def _logged(output: Path, name: str) -> list[float]:
    return [one[name] for one in _events(output) if one["event"] == "logged" and one.get(name) is not None]


def _held_out(output: Path) -> float:
    event = next(one for one in reversed(_events(output)) if one["event"] == "held out")
    return float(event["right"] / event["pairs"])


def draw(found: dict[str, Any]) -> str:
    """An SVG: the mean reward of each step's answers, and what the served policy knew before and after."""
    rewards = found["rewards"]
    low, high = min(rewards), max(rewards)
    places = " ".join(
        f"{50 + 300 * index / max(1, len(rewards) - 1):.1f},{190 - 140 * (value - low) / ((high - low) or 1):.1f}"
        for index, value in enumerate(rewards)
    )
    bars = "".join(
        f'<rect x="{430 + 100 * index}" y="{190 - 140 * share:.1f}" width="60" height="{140 * share:.1f}" '
        f'fill="{colour}"/><text x="{460 + 100 * index}" y="{184 - 140 * share:.1f}" text-anchor="middle">'
        f'{share:.1%}</text><text x="{460 + 100 * index}" y="208" text-anchor="middle">{name}</text>'
        for index, (name, share, colour) in enumerate(
            (("before", found["before"], "#9aa4b2"), ("after", found["after"], "#2563eb"))
        )
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 230" font-family="sans-serif" font-size="12" '
        'fill="#1f2937"><rect width="620" height="230" fill="#ffffff"/>'
        f'<text x="50" y="28" font-weight="bold">mean reward by GRPO step, asked of the host</text>'
        f'<text x="44" y="54" text-anchor="end">{high:.1f}</text>'
        f'<text x="44" y="194" text-anchor="end">{low:.1f}</text>'
        f'<polyline points="{places}" fill="none" stroke="#2563eb" stroke-width="2"/>'
        f'<line x1="50" y1="190" x2="350" y2="190" stroke="#9aa4b2"/>'
        f'<text x="50" y="208">1</text><text x="350" y="208" text-anchor="end">{len(rewards)}</text>'
        '<text x="410" y="28" font-weight="bold">held-out sums right, served</text>'
        f'<line x1="410" y1="190" x2="610" y2="190" stroke="#9aa4b2"/>{bars}</svg>\n'
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in vars(Sizes()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    parser.add_argument(
        "--folder", type=Path, help="where to keep what is trained, and go on with it [a folder that goes]"
    )
    parser.add_argument("--picture", type=Path, help="an SVG of the rewards by step, and of what was right")
    args = parser.parse_args()
    sizes = Sizes(**{name: getattr(args, name) for name in vars(Sizes())})
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found = circle(folder, sizes)
    if args.picture:
        args.picture.write_text(draw(found))
    print(json.dumps({name: value for name, value in found.items() if name != "rewards"}))
    sys.exit(100 * (found["after"] - found["before"]) < LEAST_POINTS)


if __name__ == "__main__":
    main()
