"""Training on a CPU: memory as it was planned and as it was measured, methods × levers at shapes of 85M and 0.6B.

    python bench/training_memory.py --shape qwen3-85m               # rows that are not there yet, 15 to 40 s each
    python bench/training_memory.py --rows sft,lora-checkpointing --shape qwen3-85m --again
    python bench/training_memory.py --table     # docs/results/training.md anew by today's planner, nothing is run

Each row is `qserve train` itself for two steps over random weights, with rows of data as long as --max-length, one of
each batch a little shorter, so that it is padded. Weights, gradients and optimizer states are sizes of the tensors; the
peak is the process's (VmHWM less its share of pages that other processes map too), over the steps and without loading.
A row is written to docs/results/training.jsonl as soon as it is measured. Exit status 1 where a peak is off by more
than 5 %, or a state by more than 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from random_checkpoint import SHAPES, write_checkpoint

from qserve.core.hardware import Hardware
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import TrainingRequest, plan_training
from qserve.training.heap import TIGHT_HEAP
from qserve.units import GIB

ROOT = Path(__file__).parents[1]
FOUND, PAGE = ROOT / "docs/results/training.jsonl", ROOT / "docs/results/training.md"
BEGIN, END = "<!-- rows of bench/training_memory.py -->\n", "<!-- end of the rows -->"
PEAK_ALLOWED, STATES_ALLOWED = 0.05, 0.01
LIMIT_S = 600
_MIB = 1024**2
_SHORTER = 7
_NONE = "--no-gradient-checkpointing"
_PLANNED = ("states", "phases", "peak", "terms")
"""Of a row what is not kept but planned anew."""


@dataclass(frozen=True)
class Row:
    """One run: `flags` beside those that all have; `length` of its sequences, `batch` of them (of pairs) at once."""

    name: str
    method: str
    flags: tuple[str, ...] = ()
    length: int = 256
    batch: int = 2


ROWS = (
    Row("sft", "sft", (_NONE,)),
    Row("sft-checkpointing", "sft"),
    Row("sft-accumulation", "sft", (_NONE, "--gradient-accumulation-steps", "2")),
    Row("sft-8bit", "sft", ("--optimizer", "adamw-8bit")),
    Row("sft-adafactor", "sft", ("--optimizer", "adafactor")),
    Row("sft-lion", "sft", ("--optimizer", "lion")),
    Row("sft-fused", "sft", ("--optimizer", "adamw-fused")),
    Row("sft-sgd", "sft", (_NONE, "--optimizer", "sgd")),
    Row("sft-long", "sft", length=512, batch=1),
    Row("sft-bf16", "sft", (_NONE, "--precision", "amp")),
    Row("sft-eager", "sft", (_NONE, "--attention", "eager")),
    Row("lora", "lora", (_NONE, "--lora-rank", "16")),
    Row("lora-checkpointing", "lora", ("--lora-rank", "16")),
    Row("lora-short", "lora", ("--lora-rank", "16"), length=128, batch=3),
    Row("lora-attention", "lora", (_NONE, "--lora-rank", "16", "--lora-targets", "attention")),
    Row("lora-bf16", "lora", (_NONE, "--lora-rank", "16", "--precision", "amp")),
    Row("lora-embeddings", "lora", ("--lora-rank", "16", "--train-embeddings")),
    Row("qlora", "qlora", ("--lora-rank", "16")),
    Row("reward", "reward", (_NONE,)),
    Row("reward-checkpointing", "reward"),
    Row("reward-accumulation", "reward", ("--gradient-accumulation-steps", "2")),
    Row("reward-8bit", "reward", (_NONE, "--optimizer", "adamw-8bit")),
    Row("reward-head", "reward", ("--freeze-base",)),
    Row("reward-lora", "reward", (_NONE, "--lora-rank", "16")),
    Row("reward-qlora", "reward", ("--lora-rank", "16", "--load-in-4bit")),
    Row("dpo", "dpo", (_NONE,), batch=1),
    Row("dpo-lora", "dpo", (_NONE, "--lora-rank", "16"), batch=1),
    Row("grpo", "grpo", (_NONE, "--beta", "0", "--completion-length", "16", "--num-generations", "2"), length=128),
    Row(
        "grpo-lora",
        "grpo",
        (_NONE, "--lora-rank", "16", "--completion-length", "16", "--num-generations", "2"),
        length=128,
    ),
)


def write_data(row: Row, model: Path, folder: Path) -> list[str]:
    """Flags that name the data of a row: 8 rows, every second one a little shorter."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    file = folder / "data.jsonl"
    if row.method == "grpo":
        rules = folder / "rules.yaml"
        rules.write_text("parts:\n  - {name: digits, rule: regex, pattern: '[0-9]'}\n")
        length = row.length - 16
        file.write_text("".join(json.dumps({"prompt": _text(tokenizer, length)}) + "\n" for _ in range(8)))
        return ["--data", str(file), "--reward", str(rules)]
    lines = []
    for number in range(8):
        length = row.length - _SHORTER * (number % 2)
        prompt, answer = _text(tokenizer, row.length // 2), _answer(tokenizer, row.length // 2, length, "y")
        shorter = _answer(tokenizer, row.length // 2, row.length - _SHORTER, "z")
        pair = {"prompt": prompt, "chosen": answer, "rejected": shorter}
        lines.append(pair if row.method in ("reward", "dpo") else {"prompt": prompt, "completion": answer})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ["--data", str(file)]


def _text(tokenizer: Any, num_tokens: int) -> list[dict[str, str]]:
    """A question that takes so many tokens with the template's own."""
    made = [{"role": "user", "content": ""}]
    around = _length(tokenizer, made, add_generation_prompt=True)
    return [{"role": "user", "content": "x" * (num_tokens - around)}]


def _answer(tokenizer: Any, num_prompt: int, num_tokens: int, letter: str) -> list[dict[str, str]]:
    prompt = _text(tokenizer, num_prompt)
    around = _length(tokenizer, [*prompt, {"role": "assistant", "content": ""}])
    return [{"role": "assistant", "content": letter * (num_tokens - around)}]


def _length(tokenizer: Any, messages: list[dict[str, str]], **flags: Any) -> int:
    return len(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **flags)["input_ids"])


def measure(row: Row, shape: str, model: Path, threads: int) -> dict[str, Any]:
    """One row, as it stands in the file."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        output = folder / "model"
        command = [
            sys.executable,
            "-m",
            "qserve",
            "train",
            row.method,
            "--model",
            str(model),
            "--gpu",
            "none",
            *write_data(row, model, folder),
            "--eval-share",
            "0",
            "--max-steps",
            "2",
            "--save-steps",
            "100",
            "--max-length",
            str(row.length),
            "--micro-batch",
            str(row.batch),
            "--output",
            str(output),
            "--gradient-accumulation-steps",
            "1",
            "--state-dir",
            str(folder / "state"),
            *row.flags,
        ]
        began_s = time.monotonic()
        environment = {**os.environ, **TIGHT_HEAP, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
        if done.returncode:
            raise RuntimeError(f"{row.name}: {(done.stderr or done.stdout)[-1500:]}")
        wall_s = time.monotonic() - began_s
        events = [json.loads(line) for line in (output / "run/events.jsonl").read_text().splitlines()]
        request = json.loads((output / "run/job.json").read_text())["request"]
        return compared(_measured(row, shape, request, events, wall_s))


def _measured(
    row: Row, shape: str, request: dict[str, Any], events: list[dict[str, Any]], wall_s: float
) -> dict[str, Any]:
    memory = [event for event in events if event["event"] == "memory"]
    names = ("weights", "gradients", "optimizer", "backward", "step")
    return {
        "shape": shape,
        "row": row.name,
        "method": row.method,
        "flags": list(row.flags),
        "length": row.length,
        "batch": row.batch,
        "request": request,
        "baseline": memory[0]["baseline_bytes"],
        "seconds": round(wall_s, 1),
        "measured": {name: max(event[f"{name}_bytes"] for event in memory) for name in names},
        "step_s": [round(one["step_s"], 2) for one in events if one["event"] == "logged" and one.get("step_s")],
    }


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """`found` with what the planner says of its request today: pairs of planned and measured, and the plan's terms."""
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40_960}
    spec = ModelSpec.from_config({**config, **SHAPES[found["shape"]]})
    request = TrainingRequest(**found["request"])
    (card,) = plan_training(spec, (Hardware((), 256 * GIB, 256 * GIB, 2).cpu_device,), request).cards
    terms = {term.name: term.num_bytes for term in (*card.other_terms, *card.terms)}
    measured, model = found["measured"], "reward" if found["method"] == "reward" else "policy"
    states = {}
    for name in ("weights", "gradients", "optimizer"):
        trained = sum(size for term, size in terms.items() if term.startswith(f"{name} ({model}"))
        states[name] = {"planned": trained, "measured": measured[name]}
    phases = {name: {"planned": size, "measured": measured[name]} for name, size in card.phases.items()}
    peak = {kind: max(one[kind] for one in phases.values()) for kind in ("planned", "measured")}
    return {**found, "states": states, "phases": phases, "peak": peak, "terms": terms}


def off(pair: dict[str, int]) -> float:
    """Measured against planned."""
    return pair["measured"] / pair["planned"] - 1 if pair["planned"] else 0.0


def is_off(found: dict[str, Any]) -> bool:
    """Whether a row is outside of what is allowed. bitsandbytes keeps packed weights that torch counts otherwise."""
    states = [
        off(pair) for name, pair in found["states"].items() if not (name == "weights" and "qlora" in found["row"])
    ]
    return abs(off(found["peak"])) > PEAK_ALLOWED or any(abs(one) > STATES_ALLOWED for one in states)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, in MiB."""
    lines = [
        "| shape | run | tokens at once | weights | gradients | optimizer | peak planned | measured | off |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in rows:
        states = " | ".join(_pair(one["states"][name]) for name in ("weights", "gradients", "optimizer"))
        sequences = one["batch"] * (2 if one["method"] in ("reward", "dpo") else 1)
        what = " ".join([one["method"], *one["flags"]])
        lines.append(
            f"| {one['shape'].removeprefix('qwen3-')} | `{what}` | {sequences} × {one['length']} | {states} | "
            f"{one['peak']['planned'] / _MIB:,.0f} | {one['peak']['measured'] / _MIB:,.0f} | {off(one['peak']):+.1%} |"
        )
    return "\n".join(lines) + "\n"


def _pair(pair: dict[str, int]) -> str:
    """One figure where both round to it, else both."""
    planned, measured = (f"{pair[kind] / _MIB:,.1f}" for kind in ("planned", "measured"))
    return planned if planned == measured else f"{planned} → {measured}"


def read_found() -> list[dict[str, Any]]:
    """Rows that were measured, in the order of ROWS, against today's plan."""
    lines = FOUND.read_text().splitlines() if FOUND.exists() else []
    newest = {(one["shape"], one["row"]): compared(one) for one in map(json.loads, lines)}
    order = [row.name for row in ROWS]
    return sorted(newest.values(), key=lambda one: (one["shape"] != "qwen3-85m", order.index(one["row"])))


def write_table() -> None:
    """The page's rows anew."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(read_found())}\n{END}{rest.split(END)[1]}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-85m", choices=("tiny", "qwen3-85m", "qwen3-0.6b"))
    parser.add_argument("--rows", help=f"some of {', '.join(row.name for row in ROWS)} [all]")
    parser.add_argument("--length", type=int, help="of sequences, in place of each row's own")
    parser.add_argument("--again", action="store_true", help="measure rows that are there too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="only write the page's table anew")
    parser.add_argument("--folder", type=Path, help="where to keep the random checkpoint [a folder in the temp dir]")
    args = parser.parse_args()
    if args.table:
        write_table()
        return
    model = write_checkpoint((args.folder or Path(tempfile.gettempdir())) / f"qserve-bench-{args.shape}", args.shape)
    wanted = set(args.rows.split(",")) if args.rows else {row.name for row in ROWS}
    known = {(one["shape"], one["row"]) for one in read_found()}
    some_off = False
    for row in ROWS:
        if row.name not in wanted or ((args.shape, row.name) in known and not args.again):
            continue
        found = measure(replace(row, length=args.length or row.length), args.shape, model, args.threads)
        with FOUND.open("a") as stream:
            stream.write(json.dumps({name: found[name] for name in found if name not in _PLANNED}) + "\n")
        some_off |= is_off(found)
        terms = ", ".join(f"{name} {size / _MIB:.0f}" for name, size in found["terms"].items())
        peak = found["peak"]
        print(
            f"{row.name:<22} {found['seconds']:5.0f} s, peak {peak['measured'] / _MIB:,.0f} MiB, planned "
            f"{peak['planned'] / _MIB:,.0f} ({off(peak):+.1%}{', OFF' if is_off(found) else ''}); baseline "
            f"{found['baseline'] / _MIB:.0f}; {terms}; measured {json.dumps(found['phases'])}",
            flush=True,
        )
    sys.exit(some_off)


if __name__ == "__main__":
    main()
