"""A saved reward model against the trainer's last evaluation: the same pairs, scored as the reward host does."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qserve.reward.evaluation.agreement import agreement
from qserve.training.data.prepare import prepared
from qserve.training.data.rows import TEMPLATE_FIELDS
from qserve.training.job import TrainingRun

__all__ = ["check_saved", "pairs_to_score"]

_TIMEOUT_S = 1800


def check_saved(run: TrainingRun) -> dict[str, Any] | None:
    """Differences of `qserve score` on the saved model from the trainer's rewards; None where it can't be scored.

    In a process of its own: this one imports no torch.
    """
    data = prepared(run.folder)
    if data is None:
        return None
    end = "" if "prompt" in data.columns else _end_of_text(run.output)
    rewards = [json.loads(line) for line in (run.folder / "held_out.jsonl").read_bytes().splitlines()]
    questions, scored = run.folder / "check.jsonl", run.folder / "check_scored.jsonl"
    pairs = pairs_to_score(run.data_folder / "test.jsonl", rewards, end)
    questions.write_text("".join(json.dumps(one) + "\n" for one in pairs))
    dtype = "float32" if run.request.precision == "fp32" else "bfloat16"
    command = [
        sys.executable,
        "-m",
        "qserve",
        "score",
        str(questions),
        "--reward",
        str(run.output),
        "--dtype",
        dtype,
        "--output",
        str(scored),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if not scored.exists():
        return {"error": (done.stderr or done.stdout).strip()[-500:]}
    return _compared(scored, rewards)


def _end_of_text(folder: Path) -> str:
    """The saved tokenizer's EOS, which TRL's reward trainer puts behind whole texts. Source: trl 1.16, add_eos."""
    held = json.loads((folder / "tokenizer_config.json").read_text()).get("eos_token")
    return str(held["content"] if isinstance(held, dict) else held or "")


def pairs_to_score(test: Path, rewards: list[dict[str, Any]], end: str = "") -> list[dict[str, Any]]:
    """The pairs of `rewards`, or its texts, in their order, as `qserve score` reads them. Whole texts end in `end`."""
    rows = {row["row"]: row for row in map(json.loads, test.read_bytes().splitlines())}
    if rewards and "given" in rewards[0]:
        chosen = [rows[one["row"]] for one in rewards]
        return [{"messages": row["prompt"] + row["response"], **_template_fields(row)} for row in chosen]
    pairs = [rows[one["row"]] for one in rewards]
    if pairs and "prompt" not in pairs[0]:
        return [{"text": text.removesuffix(end) + end} for pair in pairs for text in (pair["chosen"], pair["rejected"])]
    return [{name: pair[name] for name in ("prompt", "chosen", "rejected")} | _template_fields(pair) for pair in pairs]


def _template_fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in TEMPLATE_FIELDS if name in row}


def _compared(scored: Path, rewards: list[dict[str, Any]]) -> dict[str, Any]:
    lines = [json.loads(line) for line in scored.read_bytes().splitlines()]
    if "given" in rewards[0]:
        given = [value for one in rewards for value in one["given"]]
        hosted = [value for line in lines for value in _values(line)]
        return asdict(agreement(hosted, given, ())) | {"num_texts": len(lines)}
    true = [value for one in rewards for value in (one["chosen"], one["rejected"])]
    ours = [value for line in lines for value in _both(line)]
    pairs = [(index, index + 1) for index in range(0, len(true), 2)]
    return asdict(agreement(ours, true, pairs))


def _values(line: dict[str, Any]) -> list[float]:
    """Of each label, or of each step."""
    return line.get("steps") or list((line.get("attributes") or {"": line["reward"]}).values())


def _both(line: dict[str, Any]) -> list[float]:
    """Of a pair, or of one side's whole text."""
    if "reward" in line:
        return [float(line["reward"])]
    return [float(line["chosen_rewards"][0]), float(line["rejected_rewards"][0])]
