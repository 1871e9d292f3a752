"""What TRL's own trainers make of rows, in one process: importing TRL costs more than all of it.

    python -m tests.tiny.training.rows FOLDER

FOLDER/made.json has of each run the texts of what is trained on, and its token ids.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}

from qserve.demo import chat_model_path
from qserve.hub.chat_template import read_template
from qserve.planner.training import TrainingRequest
from qserve.training.configuration.files import write_configuration
from qserve.training.data.prepare import prepare
from qserve.training.job import DataSource, Schedule, TrainingRun
from tests.unit.rows.forms import TOOLS, answer, call, openai, user

OTHER = [{"type": "function", "function": {"name": "multiply", "parameters": {"properties": {"b": {}, "c": {}}}}}]
USER = user("2+3?")
RESULT = {"role": "tool", "tool_call_id": "1", "content": "5"}
SFT: list[dict[str, Any]] = [
    {"messages": [user("2+3?"), openai(call({"a": 2})), RESULT, {**answer("five"), "weight": 0}], "tools": TOOLS},
    {"messages": [user("6+1?"), openai(call({"b": [7], "c": None})), RESULT, answer("seven")], "tools": OTHER},
    {"messages": [user("4+4?"), {**answer("nine"), "train": False}, user("No."), answer("eight")]},
    {"messages": [user("1+1?"), {**answer("three"), "loss": False}]},
    {"prompt": "Hi", "completion": "Hello", "chat_template_kwargs": {"enable_thinking": False}},
]
PAIRS: list[dict[str, Any]] = [
    {"prompt": "2+3?", "chosen": [user("2+3?"), answer("5")], "rejected": [user("2+3?"), answer("6")]},
    {
        "prompt": [user("2+3?")],
        "chosen": [openai(call({"a": 2})), RESULT, answer("5")],
        "rejected": "6",
        "tools": TOOLS,
    },
    {"prompt": "6+1?", "chosen": "7", "rejected": [openai(call({"b": 6, "c": None}))], "tools": json.dumps(OTHER)},
    {"chosen": "\n\nHuman: 1+1?\n\nAssistant: 2", "rejected": "\n\nHuman: 1+1?\n\nAssistant: 3"},
    {"prompt": "Same?", "chosen": "yes", "rejected": "<think>So I say</think>yes"},
]
TEXTS: list[dict[str, Any]] = [{"chosen": "1+1 is 2", "rejected": "1+1 is 3"}]


def trainer_of(folder: Path, name: str, method: str, rows: list[dict[str, Any]], **fields: Any) -> Any:
    """TRL's trainer over what `qserve train` prepares of `rows`."""
    from qserve.training.process.trainers import make_trainer

    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = TrainingRequest(method, precision="fp32", max_length=256, micro_batch=2, gradient_checkpointing=False)
    run = TrainingRun(
        request,
        str(chat_model_path()),
        DataSource(str(file), eval_share=0),
        folder / name,
        schedule=Schedule(max_steps=1),
        **fields,
    )
    template = read_template(Path(run.model))
    write_configuration(run, prepare(run.data, run.trainer, run.data_folder, run.folder, template))
    return make_trainer(run, [])


def trained(trainer: Any) -> list[dict[str, Any]]:
    decode = trainer.processing_class.decode
    return [
        {"text": decode(row["input_ids"]), "trained": decode([one for one in row["labels"] if one != -100])}
        for row in trainer.train_dataset
    ]


def paired(trainer: Any) -> dict[str, Any]:
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    rows = [{name: row[name] for name in names if name in row} for row in trainer.train_dataset]
    return {"rows": rows, "num_ties": trainer.num_ties, "loss": float(trainer.train().training_loss)}


def main(folder: Path) -> None:
    made = {
        "sft": trained(trainer_of(folder, "sft", "sft", SFT)),
        "packed": trained(trainer_of(folder, "packed", "sft", SFT, packing=True)),
        "dpo": paired(trainer_of(folder, "dpo", "dpo", PAIRS)),
        "reward": paired(trainer_of(folder, "reward", "reward", PAIRS)),
        "texts": paired(trainer_of(folder, "texts", "reward", TEXTS)),
    }
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
