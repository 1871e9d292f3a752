"""What training takes, planned and measured: methods × levers × shapes on a CPU, two steps each.

    python bench/training_memory.py --shapes tiny,85m --markdown docs/results/training.md

Every row is a process of its own, forked after TRL is imported: a peak is the kernel's high-water mark of its resident
pages less what it held when the model was loaded and the data mapped, weights apart. Weights, gradients and optimizer
states are the tensors' own sizes.
Needs the machine to itself for its times; memory does not depend on that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}

from qserve.core.hardware import Device
from qserve.demo import chat_model_path
from qserve.hub import resolve
from qserve.planner.training import TrainingRequest, plan_training
from qserve.training.configuration.files import write_configuration
from qserve.training.data.prepare import prepare
from qserve.training.job import DataSource, Schedule, TrainingRun
from qserve.units import format_bytes

_CPU = Device("cpu", "cpu", 1 << 36)
_STEPS = 2


@dataclass(frozen=True)
class Shape:
    """A Qwen3 of these dimensions with random weights (None: the demo chat model), and the length it is trained at."""

    name: str
    config: dict[str, Any] | None
    max_length: int


SHAPES = {
    "tiny": Shape("2.0M", None, 256),
    "85m": Shape(
        "87M",
        {
            "hidden_size": 768, "num_hidden_layers": 10, "intermediate_size": 2048, "num_attention_heads": 12,
            "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000, "tie_word_embeddings": True,
            "max_position_embeddings": 2048, "pad_token_id": 0, "eos_token_id": 1,
        },
        256,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`fields` are those of the request beside length, precision and batch."""

    name: str
    method: str
    fields: dict[str, Any] = field(default_factory=dict)


ROWS = (
    Row("reward", "reward", {"gradient_checkpointing": False}),
    Row("reward, checkpointing", "reward", {}),
    Row("reward, checkpointing, 4 pairs", "reward", {"micro_batch": 4}),
    Row("reward, head alone", "reward", {"freeze_base": True, "gradient_checkpointing": False}),
    Row("reward, LoRA 16", "reward", {"lora_rank": 16, "gradient_checkpointing": False}),
    Row("reward, 8-bit Adam", "reward", {"optimizer": "adamw-8bit"}),
    Row("reward, Adafactor", "reward", {"optimizer": "adafactor"}),
    Row("SFT", "sft", {"gradient_checkpointing": False}),
    Row("SFT, checkpointing", "sft", {}),
    Row("SFT, SGD", "sft", {"optimizer": "sgd"}),
    Row("LoRA 16", "lora", {"lora_rank": 16, "gradient_checkpointing": False}),
    Row("DPO", "dpo", {"gradient_checkpointing": False}),
    Row("DPO, LoRA 16, checkpointing", "dpo", {"lora_rank": 16}),
)


def main() -> None:
    """Writes a table to standard output and, with --markdown, between that page's marks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default="tiny,85m")
    parser.add_argument("--rows", default="", help="only those whose name holds this")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.shapes.split(","):
            model = _model(SHAPES[name], Path(folder) / name)
            for row in ROWS:
                if args.rows in row.name:
                    results.append(_measured(SHAPES[name], model, row, Path(folder)))
                    print(_line(results[-1]), flush=True)
                    if args.json:
                        args.json.write_text(json.dumps(results, indent=2) + "\n")
    if args.markdown:
        _write(args.markdown, results)


def _model(shape: Shape, folder: Path) -> Path:
    """With the demo's tokenizer, whose ids any of these vocabularies holds."""
    if shape.config is None:
        return chat_model_path()
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**shape.config)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(chat_model_path()).save_pretrained(folder)
    return folder


def _data(folder: Path, method: str, length: int) -> Path:
    """Rows of one length, `length` tokens or a few less: a digit is a token, so that a plan's length is the batch's."""
    file = folder / f"{method}-{length}.jsonl"
    size = length - 24
    rows = []
    for n in range(40):
        good, bad = "1" * (size - 8), "2" * (size - 8)
        asked = f"{n:04d}"
        rows.append(
            {"prompt": asked, "completion": good} if method in ("sft", "lora") else
            {"prompt": asked, "chosen": good, "rejected": bad}
        )  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def _measured(shape: Shape, model: Path, row: Row, folder: Path) -> dict[str, Any]:
    request = TrainingRequest(
        row.method, precision="fp32", max_length=shape.max_length, tiled_loss=row.method != "reward",
        **{"micro_batch": 2, **row.fields},
    )  # fmt: skip
    plan = plan_training(resolve(str(model)).spec, (_CPU,), request)
    output = Path(tempfile.mkdtemp(dir=folder))
    data = DataSource(str(_data(folder, row.method, shape.max_length)), eval_share=0.0)
    schedule = Schedule(max_steps=_STEPS, save_steps=1000, learning_rate=1e-4)
    run = TrainingRun(request, str(model), data, output, schedule)
    write_configuration(run, prepare(run.data, run.trainer, run.data_folder, run.folder))
    run.write()
    began_s = time.monotonic()
    events = _in_a_fork(run)
    return {"shape": shape.name, "row": row.name, "seconds": time.monotonic() - began_s, **_compared(plan, events)}


def _in_a_fork(run: TrainingRun) -> list[dict[str, Any]]:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with (run.folder / "train.log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                from qserve.training.process.run import main as train

                status = train(run.folder / "job.json")
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit((run.folder / "train.log").read_text()[-3000:])
    return [json.loads(line) for line in run.events_file.read_text().splitlines()]


def _compared(plan: Any, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last step that was measured: the first allocates what later ones find."""
    (card,) = plan.cards
    terms = {term.name: term.num_bytes for term in (*card.terms, *card.other_terms)}
    measured = [event for event in events if event["event"] == "memory"][-1]
    logged = [event for event in events if event["event"] == "logged" and event.get("step_s")]
    sums = {
        kind: sum(size for name, size in terms.items() if name.startswith(f"{kind} ("))
        for kind in ("weights", "gradients", "optimizer")
    }
    (loaded,) = (event for event in events if event["event"] == "loaded")
    # Libraries go on loading while a trainer is built: what there is then beside the weights is not training's.
    process = loaded["held_bytes"] - loaded["weights_bytes"]
    peak = max(measured["backward_bytes"], measured["step_bytes"]) - process
    return {
        "planned": {**sums, "peak": max(card.phases.values()) - terms["runtime"] - terms.get("others", 0)},
        "measured": {
            **{kind: measured[f"{kind}_bytes"] for kind in sums}, "peak": peak,
            "process": process,
        },
        "step_s": logged[-1]["step_s"],
    }  # fmt: skip


def _line(one: dict[str, Any]) -> str:
    cells = [one["shape"], one["row"]]
    for kind in ("weights", "gradients", "optimizer", "peak"):
        planned, measured = one["planned"][kind], one["measured"][kind]
        cells += [f"{format_bytes(planned)}", f"{format_bytes(measured)}"]
    error = one["measured"]["peak"] / one["planned"]["peak"] - 1
    return "| " + " | ".join([*cells, f"{100 * error:+.0f} %".replace("-", "−")]) + " |"


def _write(page: Path, results: list[dict[str, Any]]) -> None:
    lead = (
        "| shape | run | weights | measured | gradients | measured | optimizer | measured | peak | measured | error |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    text, (start, end) = page.read_text(), ("<!-- rows -->\n", "<!-- /rows -->")
    before, _, rest = text.partition(start)
    table = lead + "".join(_line(one) + "\n" for one in results)
    page.write_text(before + start + table + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
