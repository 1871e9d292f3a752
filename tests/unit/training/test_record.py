"""What is kept of a training run, and what a report tells of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.cli.runs.show import show_list, show_run
from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner.training import TrainingJob, TrainingRequest
from qserve.report import read_report, to_html, to_json, to_markdown
from qserve.runs import RunStore
from qserve.training import record as record_module
from qserve.training.calibration import calibrated_runtime
from qserve.training.job import DataSource, TrainingRun
from qserve.training.outcome import Outcome, outcome_of, so_far
from qserve.training.record import TrainingRecord, document_of
from qserve.units import GIB, MIB

HARDWARE = Hardware((), 8 * GIB, 6 * GIB, 2)
CHECK = {
    "num_texts": 8,
    "largest_difference": 3e-7,
    "mean_difference": 1e-7,
    "spread": 0.4,
    "rank_correlation": 1.0,
    "num_pairs": 4,
    "num_flipped": 0,
}


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    request = TrainingRequest("reward", precision="fp32", max_length=128)
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), request)
    made = TrainingRun(request, "demo", DataSource("d.jsonl"), tmp_path / "out", plan=job.plan().to_json())
    made.write()
    (made.folder / "train.yaml").write_text("model_name_or_path: demo\n")
    return made


def events(run: TrainingRun) -> list[dict]:
    terms = {term["name"]: term["num_bytes"] for term in run.plan["devices"][0]["terms"]}
    steps = [
        {
            "event": "logged",
            "unix_s": 1000.0 + n,
            "step": n,
            "loss": 0.7 / n,
            "step_s": 0.5,
            "num_tokens": 100.0 * n,
            "learning_rate": 1e-4,
            "accuracy": 0.5,
        }
        for n in range(1, 1001)
    ]
    memory = {
        "event": "memory",
        "step": 1,
        "source": "VmHWM",
        "weights_bytes": terms["weights (reward)"],
        "gradients_bytes": terms["gradients (reward)"],
        "optimizer_bytes": terms["optimizer (reward)"],
        "backward_bytes": 700 * MIB,
        "step_bytes": 650 * MIB,
        "baseline_bytes": 600 * MIB,
    }
    begin = {"event": "imported", "peak_flops_per_s": 40e9}
    end = [
        {"event": "evaluated", "step": 1000, "eval_loss": 0.3, "eval_accuracy": 0.9, "eval_margin": 1.5},
        {"event": "held out", "pairs": 40, "right": 36},
        {"event": "ended", "step": 1000},
    ]
    return [begin, memory, *steps, *end]


def kept(run: TrainingRun, outcome: Outcome, state: Path) -> RunStore:
    record = TrainingRecord(run, state, ("qserve", "train", "reward", "--model", "demo"), HARDWARE)
    assert (
        record.close(outcome, CHECK if outcome.state == "ended" else None, int(outcome.state == "failed")) == record.id
    )
    return RunStore.open(state)


@pytest.fixture
def store(run: TrainingRun, tmp_path: Path) -> RunStore:
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), run.request)
    return kept(run, outcome_of(events(run), 0, tmp_path / "log", job), tmp_path / "state")


def test_a_model_that_is_worse_than_guessing_says_so_in_its_report(run: TrainingRun, tmp_path: Path) -> None:
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), run.request)
    told = [one | {"right": 3} if one["event"] == "held out" else one for one in events(run)]
    store = kept(run, outcome_of(told, 0, tmp_path / "log", job), tmp_path / "state")
    assert store.trainings()[-1].document["held_out"]["verdict"] == "worse"
    assert "worse than guessing" in to_markdown(read_report(store, store.run()))


def test_a_run_that_goes_on_is_kept_now_and_then(run: TrainingRun, tmp_path: Path, monkeypatch) -> None:
    """Whoever follows it asks the list, which says when there is something new; the end takes the place of all that."""
    record = TrainingRecord(run, tmp_path / "state", ("qserve", "train"), HARDWARE)
    documents: list[dict] = []
    monkeypatch.setattr(record._writer, "training", lambda name, document: documents.append(document))
    monkeypatch.setattr(record_module, "_TIMES_ITS_COST", 0)
    begun = {"event": "train", "unix_s": 999.0, "from_step": 0, "to_step": 1000}
    told = [begun, *events(run)[:9]]
    record.progress(told)
    assert not documents, "it was kept when it began, less than two seconds ago"
    record._next_s = 0.0
    record.progress(told)
    record.progress(told)
    assert [(one["step"], one["num_steps"], one["state"]) for one in documents] == [(7, 1000, "running")]
    monkeypatch.undo()
    record._writer.training("reward demo", documents[0])
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), run.request)
    assert record.close(outcome_of(events(run), 0, tmp_path / "log", job), CHECK, 0) == record.id
    store = RunStore.open(tmp_path / "state")
    (training,) = store.trainings()
    assert training.document["state"] == "ended" and training.document["held_out"]["right"] == 36
    (listed,) = store.training_list()
    assert (listed.id, listed.name, listed.state, listed.exit_status) == (record.id, "reward demo", "ended", 0)
    assert listed.updated_unix_s == pytest.approx(training.unix_s)


def test_names_of_other_trainers_are_the_same_figures(run: TrainingRun) -> None:
    logged = {"event": "logged", "step": 1, "loss": 0.5, "rewards/accuracies": 0.75, "rewards/margins": 0.1}
    told = {"event": "evaluated", "step": 1, "eval_loss": 0.4, "eval_rewards/accuracies": 0.5}
    document = document_of(run, so_far([logged, told]), None)
    assert document["curve"] == [{"step": 1, "loss": 0.5, "accuracy": 0.75, "margin": 0.1}]
    assert document["evaluations"][0]["accuracy"] == 0.5


def test_a_long_run_is_kept_short(store: RunStore) -> None:
    (training,) = store.trainings()
    curve = training.document["curve"]
    assert len(curve) == 400
    assert (curve[0]["step"], curve[-1]["step"]) == (1, 1000)
    assert training.document["tokens_per_s"] == pytest.approx(200)
    assert store.run().started_by == "train"


def test_a_report_sets_measured_beside_planned(store: RunStore) -> None:
    report = read_report(store, store.run())
    text = to_markdown(report)
    assert "## Training: reward" in text
    assert "| weights | 7.7 MiB | 7.7 MiB | +0.0 % |" in text
    assert "held-out pairs right: **90.0 %**, of 40" in text
    assert "differ by 3.0e-07 at most from the trainer's on 8 held-out texts" in text
    assert "model_name_or_path: demo" in text
    assert "<svg" in to_html(report)
    assert "training" in to_json(report)["sections"]


def test_a_report_says_how_good_a_reward_model_is_by_length_and_how_sure(run: TrainingRun, tmp_path: Path) -> None:
    rows = [
        {"row": n, "chosen": 1.0 + n % 2, "rejected": 1.5, "chosen_tokens": n, "rejected_tokens": 5}
        for n in range(1, 41)
    ]
    (run.folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = TrainingJob("demo", resolve("demo").spec, "none", (HARDWARE.cpu_device,), run.request)
    store = kept(run, outcome_of(events(run), 0, tmp_path / "log", job), tmp_path / "state")
    quality = store.trainings()[-1].document["quality"]
    assert [(one["shortest"], one["longest"], one["count"]) for one in quality["by_length"]] == [
        (5, 10, 10),
        (11, 20, 10),
        (21, 30, 10),
        (31, 40, 10),
    ]
    assert all(one["accuracy"] == 0.5 for one in quality["by_length"])
    text = to_markdown(read_report(store, store.run()))
    assert text.startswith("# Training run reward "), "its title, where no model was served"
    assert "| 11 to 20 | 10 | 50.0 % |" in text
    assert "Expected calibration error 0.122" in text


def test_speed_is_told_against_the_products_that_were_measured(run: TrainingRun, store: RunStore) -> None:
    document = store.trainings()[-1].document
    operations = run.plan["operations"]
    length = 100 / 2  # tokens of a step over its pair of sequences
    each = operations["per_token"] + length * operations["per_position"]
    assert document["flops_per_s"] == pytest.approx(200 * each)
    assert document["mfu"] == pytest.approx(200 * each / 40e9)
    assert document["step_s"] == 0.5
    assert "of the model alone" in to_markdown(read_report(store, store.run()))


def test_without_a_measured_rate_there_is_no_mfu(run: TrainingRun, tmp_path: Path) -> None:
    outcome = Outcome("ended", [one for one in events(run) if one["event"] != "imported"])
    store = kept(run, outcome, tmp_path / "state")
    assert store.trainings()[-1].document["mfu"] is None
    assert "MFU" not in to_markdown(read_report(store, store.run()))


def test_a_thinned_curve_is_not_called_every_step(store: RunStore) -> None:
    assert "400 of 1,000 steps, evenly" in to_html(read_report(store, store.run()))


def test_a_report_shows_what_a_policy_wrote(run: TrainingRun, tmp_path: Path) -> None:
    def sample(answer: str, length: float) -> dict:
        rewards = {"rules": 1.0, "reward": length}
        return {"prompt": "2+3?", "completion": answer, "rewards": rewards, "reward": 1 + length, "advantage": 0.1}

    told = {"event": "rollouts", "step": 1, "samples": [sample("it | is 5", 2.0), sample("5" * 400, -0.5)]}
    store = kept(run, Outcome("ended", [told, *events(run)]), tmp_path / "state")
    text = to_markdown(read_report(store, store.run()))
    assert "| step | prompt | answer | reward | rules | reward |" in text
    assert "| 1 | 2+3? | it \\| is 5 | 3 | 1 | 2 |" in text
    assert f"{'5' * 300} …" in text and "5" * 301 not in text


def test_the_next_plan_learns_what_the_process_takes(store: RunStore, tmp_path: Path) -> None:
    assert calibrated_runtime(tmp_path / "state", "reward") == (600 + 85) * MIB
    assert calibrated_runtime(tmp_path / "state", "dpo") is None  # another trainer loads other libraries
    assert calibrated_runtime(tmp_path / "elsewhere", "reward") is None
    assert not (tmp_path / "elsewhere").exists()


def test_the_list_of_runs_names_it(store: RunStore, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    show_list(store.runs(), store.path)
    show_run(store, store.run())
    shown = capsys.readouterr().out
    assert "train reward demo" in shown


def test_a_failed_run_says_why(run: TrainingRun, tmp_path: Path) -> None:
    store = kept(run, Outcome("failed", [], "out of memory"), tmp_path / "state")
    assert "out of memory" in to_markdown(read_report(store, store.run()))
    assert store.run().exit_status == 1
