"""The screens of `qserve train`'s end and of `qserve plan train`, at 80 columns."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from qserve.cli.plan.train import command as plan_train
from qserve.cli.train.summary import Ended, show_summary, summary_json
from qserve.runs.verdict import held_out_facts
from qserve.units import MIB
from tests.golden.screens import WIDTH, check_screen

TYPED = "qserve train reward --model demo --data demo"
LONGEST = 120  # of a command, which is not cut into lines


def document(**changed: Any) -> dict[str, Any]:
    """Of a reward model, as training/record.py keeps it."""
    curve = [{"step": n, "loss": 0.7 - n / 200, "accuracy": 0.5 + n / 200} for n in range(1, 76)]
    buckets = [{"shortest": 19, "longest": 44, "accuracy": 0.656}, {"shortest": 45, "longest": 119, "accuracy": 0.706}]
    return {
        "method": "reward",
        "state": "ended",
        "reason": None,
        "output": "/home/you/rm",
        "step": 75,
        "num_steps": 75,
        "curve": curve,
        "held_out": held_out_facts({"pairs": 66, "right": 45}),
        "quality": {"by_length": buckets, "calibration": {"error": 0.087}},
        "check": {"num_texts": 132, "largest_difference": 5.4e-7, "num_pairs": 66, "num_flipped": 0},
        "measured": {"backward_bytes": 690 * MIB, "step_bytes": 612 * MIB},
        "planned": {"phases": {"backward": 698 * MIB, "step": 640 * MIB}},
        "job": {},
        "evaluations": [],
        **changed,
    }


def ended(checkpoint: int | None = 75, **changed: Any) -> Ended:
    resume = f"{TYPED} --output /home/you/rm --resume"
    return Ended(document(**changed), checkpoint, resume, f"{TYPED} --epochs 9", "20261128-193000-train-1a2b")


STOPPED = {"state": "stopped", "held_out": {}, "quality": None, "check": None}
LABELS = [{"name": name, "mse": 1.31, "mean_mse": 1.25, "rank_correlation": 0.04} for name in ("helpful", "correct")]
SCREENS = {
    "ended": ended(),
    "worse": ended(held_out=held_out_facts({"pairs": 66, "right": 20})),
    "unclear": ended(held_out=held_out_facts({"pairs": 11, "right": 5}), curve=[{"step": 1, "loss": 0.69}]),
    "labels": ended(held_out={"texts": 40}, quality={"by_label": LABELS}),
    "stopped": ended(12, **STOPPED, step=12),
    "stopped-early": ended(None, **STOPPED, step=None, num_steps=None),
    "failed": ended(
        40,
        **{**STOPPED, "state": "failed"},
        reason="out of memory (CUDA out of memory). What to change "
        "first: a smaller micro-batch with more accumulation (more, smaller steps for the same batch)",
    ),
}


@pytest.mark.parametrize("name", SCREENS)
def test_the_end_of_a_run(name: str) -> None:
    console = Console(file=StringIO(), width=WIDTH, highlight=False)
    show_summary(SCREENS[name], console)
    check_screen(f"train-{name}", console.file.getvalue(), longest=LONGEST)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SCREENS)
def test_the_object_for_programs_names_the_same_next_step(name: str) -> None:
    one = SCREENS[name]
    told = json.loads(json.dumps(summary_json(one, 130)))
    assert (told["exit_status"], told["state"], told["checkpoint_step"]) == (130, one.document["state"], one.checkpoint)
    assert told["next_command"] == one.next_command
    assert told["next_command"].startswith("qserve up --reward" if name == "ended" else "qserve train")
    assert (told["warning"] is not None) == (name in ("worse", "unclear", "labels"))
    assert not {"curve", "configuration", "job"} & told.keys()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fits", ("lora", "Qwen/Qwen3-8B", "rtx-4090")),
        ("does-not-fit", ("sft", "Qwen/Qwen3-8B", "rtx-4090")),
        ("does-not-fit-four-cards", ("reward", "Qwen/Qwen2.5-3B", "rtx-3090:4")),
    ],
)
def test_a_plan(name: str, words: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    method, model, gpu = words
    done = CliRunner().invoke(plan_train, ["--method", method, "--model", model, "--gpu", gpu])
    check_screen(f"plan-train-{name}", done.stdout, longest=LONGEST)


def test_lora_is_offered_before_what_needs_more_ram_than_people_have() -> None:
    words = ["--method", "sft", "--model", "Qwen/Qwen3-8B", "--gpu", "rtx-4090", "--json"]
    offered = json.loads(CliRunner().invoke(plan_train, words).stdout)["suggestions"]
    assert [one["change"].partition(" ")[0] for one in offered] == ["LoRA", "QLoRA", "more", "ZeRO-2"]
    assert [one["host_bytes"] > 0 for one in offered] == [False, False, False, True]
    assert all(one["duration"]["low_s"] < one["duration"]["expected_s"] < one["duration"]["high_s"] for one in offered)
