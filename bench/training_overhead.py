"""What qserve adds to a TRL run: `qserve train` against `accelerate launch` of TRL's own script, in turns.

    python bench/training_overhead.py                    # 3 turns of 30 steps of the demo, 4 minutes
    python bench/training_overhead.py --turns 5 --steps 60
    python bench/training_overhead.py --tight-heap       # and a third run, as where the plan leaves no space to grow

All run the same train.yaml, which qserve wrote, with one thread. Compared are the steps after the first: processor
seconds of the process with all its threads, so that other programs on the machine count for less, seconds on the clock,
and page faults. What qserve's own callbacks take of them (measuring, telling, looking for a stop) is clocked as well:
that figure does not hang on how even the machine is. Prints every turn, and the ratios to the run by hand in that turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from qserve.demo.preferences import write_held_out
from qserve.training.heap import TIGHT_HEAP

LIMIT_S = 900
# Python imports this by itself in every process that has its folder on the path: no code of either run changes.
CLOCK = """
import importlib.util, json, os, resource, sys, time

inside = 0.0


def now():
    return time.process_time(), time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt, inside


def timed(call):
    def around(*args, **kwargs):
        global inside
        began = time.process_time()
        try:
            return call(*args, **kwargs)
        finally:
            inside += time.process_time() - began

    return around


def follow(trainer):
    from transformers import TrainerCallback

    for one in trainer.callback_handler.callbacks:
        if type(one).__module__.startswith("qserve"):
            for name in (name for name in dir(one) if name.startswith("on_")):
                setattr(one, name, timed(getattr(one, name)))
    marks = []
    steps = type("Steps", (TrainerCallback,), {"on_step_end": lambda *_, **__: marks.append(now())})
    trainer.add_callback(steps())
    return marks


class Clock:
    def find_spec(self, name, path=None, target=None):
        if name != "transformers.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def clocked(module):
            run(module)
            train = module.Trainer.train

            def followed(trainer, *args, **kwargs):
                marks = follow(trainer)
                result = train(trainer, *args, **kwargs)
                names = "cpu_s", "wall_s", "faults", "callbacks_s"
                spans = zip(names, marks[0], marks[-1])
                told = {name: (last - first) / (len(marks) - 1) for name, first, last in spans}
                with open(os.environ["CLOCKED"], "w") as file:
                    json.dump(told, file)
                return result

            module.Trainer.train = followed

        spec.loader.exec_module = clocked
        return spec


if "CLOCKED" in os.environ:
    sys.meta_path.insert(0, Clock())
"""


@dataclass(frozen=True)
class Step:
    """The mean of one run: processor seconds of all threads, seconds on the clock, minor page faults, and the processor
    seconds that qserve's callbacks have of it.
    """

    cpu_s: float
    wall_s: float
    faults: float
    callbacks_s: float

    def __str__(self) -> str:
        own = f", of it {1000 * self.callbacks_s:.1f} ms in qserve's callbacks" if self.callbacks_s else ""
        return f"{self.cpu_s:.3f} s of a processor{own}, {self.wall_s:.3f} s, {self.faults:,.0f} faults"


def clocked(folder: Path, command: list[str], heap: Mapping[str, str]) -> Step:
    """The steps of `command`, which trains in a process below it."""
    file = folder / "clocked.json"
    file.unlink(missing_ok=True)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **heap, "PYTHONPATH": path, "CLOCKED": str(file), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, timeout=LIMIT_S, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout[-1000:]} {done.stderr[-1000:]}")
    return Step(**json.loads(file.read_text()))


def by_qserve(folder: Path, output: Path, steps: int, heap: Mapping[str, str]) -> Step:
    """`qserve train` from the beginning."""
    command = [
        sys.executable,
        "-m",
        "qserve",
        "train",
        "sft",
        "--model",
        "demo",
        "--data",
        str(folder / "rows.jsonl"),
        "--gpu",
        "none",
        "--eval-share",
        "0",
        "--max-steps",
        str(steps),
        "--save-steps",
        str(10 * steps),
        "--micro-batch",
        "32",
        "--max-length",
        "256",
        "--output",
        str(output),
        "--state-dir",
        str(folder / "state"),
    ]
    return clocked(folder, command, heap)


def by_hand(folder: Path, output: Path, written: Path) -> Step:
    """The files of `written` through TRL's own script, with the heap as the user's shell has it."""
    settings = yaml.safe_load((written / "run/train.yaml").read_text())
    file = folder / f"{output.name}.yaml"
    file.write_text(yaml.safe_dump({**settings, "output_dir": str(output)}))
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(written / "run/accelerate.yaml"),
        "-m",
        "trl.scripts.sft",
        "--config",
        str(file),
    ]
    return clocked(folder, command, {})


def write_rows(folder: Path) -> None:
    """rows.jsonl, and the module that clocks."""
    write_held_out(folder / "pairs.jsonl", 100)
    pairs = map(json.loads, (folder / "pairs.jsonl").read_text().splitlines())
    rows = ({"prompt": one["prompt"], "completion": one["chosen"]} for one in pairs)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sitecustomize.py").write_text(CLOCK)


def ratios(turns: list[dict[str, Step]], name: str, field: str) -> list[float]:
    """Of each turn, to its run by hand."""
    return [getattr(one[name], field) / getattr(one["by hand"], field) for one in turns]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tight-heap", action="store_true", help="a third run: qserve with a heap that gives back")
    args = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    turns: list[dict[str, Step]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_rows(folder)
        for number in range(args.turns):
            ours = folder / f"qserve-{number}"
            turn = {"qserve": by_qserve(folder, ours, args.steps, {})}
            turn["by hand"] = by_hand(folder, folder / f"hand-{number}", ours)
            if args.tight_heap:
                turn["tight heap"] = by_qserve(folder, folder / f"tight-{number}", args.steps, TIGHT_HEAP)
            turns.append(turn)
            print(f"turn {number + 1}, a step: " + "; ".join(f"{name} {one}" for name, one in turn.items()), flush=True)
    own = statistics.median(one["qserve"].callbacks_s / one["qserve"].cpu_s for one in turns)
    print(f"qserve's callbacks: {own:.2%} of a step")
    for name in (name for name in turns[0] if name != "by hand"):
        for field in ("cpu_s", "wall_s", "faults"):
            each = ratios(turns, name, field)
            turns = ", ".join(f"{one - 1:+.1%}" for one in each)
            print(f"{name}, {field}: {statistics.median(each) - 1:+.1%} beside by hand (each turn: {turns})")


if __name__ == "__main__":
    main()
