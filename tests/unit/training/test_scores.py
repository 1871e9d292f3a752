"""Rows of scores: what they are called, what is broken, what the flags may say, and what the plan makes of them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from qserve.cli.train.flags import TrainFlags
from qserve.core.hardware import Hardware
from qserve.errors import UsageError
from qserve.planner.training import TrainingJob, TrainingRequest
from qserve.planner.training.models import cast_of
from qserve.training.check import pairs_to_score
from qserve.training.configuration.trl import beyond_trl, trl_configuration
from qserve.training.data.prepare import check_source, prepare
from qserve.training.data.rows import RowError
from qserve.training.data.scores import STEPS, labels_of, scored_of
from qserve.training.emit import emitted
from qserve.training.job import DataSource, Schedule, TrainingRun
from qserve.training.quality import quality_in
from qserve.units import GIB

HELPSTEER = {"helpfulness": 3, "correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 2}
ASKED = {"prompt": "2+3?", "response": "5"}
TALK = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]


@pytest.mark.parametrize(
    ("row", "labels", "scores"),
    [
        ({**ASKED, **HELPSTEER}, tuple(HELPSTEER), [3, 4, 4, 1, 2]),
        ({**ASKED, "scores": {"kind": 0.5, "short": 1}}, ("kind", "short"), [0.5, 1]),
        ({"messages": TALK, "scores": [3, 1]}, ("LABEL_0", "LABEL_1"), [3, 1]),
        ({**ASKED, "rating": 4}, ("rating",), [4]),
    ],
)
def test_scores_are_found_where_data_sets_have_them(
    row: dict[str, Any], labels: tuple[str, ...], scores: list[float]
) -> None:
    assert labels_of(row, ()) == labels
    assert scored_of(row, labels) == {"prompt": TALK[:1], "response": TALK[1:], "scores": scores}


def test_names_may_be_asked_for() -> None:
    assert scored_of({**ASKED, **HELPSTEER}, ("verbosity", "helpfulness"))["scores"] == [2, 3]
    assert scored_of({"messages": TALK, "scores": [3, 1]}, ("kind", "short"))["scores"] == [3, 1]
    assert labels_of({**ASKED, "scores": [3, 1]}, ("kind", "short")) == ("kind", "short")


def test_pairs_stay_pairs() -> None:
    assert labels_of({"prompt": "p", "chosen": "a", "rejected": "b", "score": 1}, ()) == ()
    assert labels_of({"prompt": "p"}, ()) == ()
    with pytest.raises(RowError, match="leave --labels out"):
        labels_of({"prompt": "p", "chosen": "a", "rejected": "b"}, ("kind",))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({**ASKED, "scores": {"kind": 1}}, "no score 'short'; it has kind"),
        ({**ASKED, "scores": {"kind": 1, "short": None}}, "the score 'short' is None"),
        ({**ASKED, "scores": {"kind": 1, "short": float("nan")}}, "which is not a number"),
        ({**ASKED, "scores": [1, 2, 3]}, "has 3 scores, but 2 labels are trained: kind, short"),
        ({"prompt": "p", "scores": [1, 2]}, "needs a prompt with a response"),
    ],
)
def test_what_can_not_be_trained_on_is_said(row: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=why):
        scored_of(row, ("kind", "short"))


def test_labelled_steps_are_one_answer_with_a_token_after_each() -> None:
    row = {"prompt": "2+3?", "completions": ["2 and 3", "6"], "labels": [True, False]}
    assert labels_of(row, ()) == STEPS
    made = scored_of(row, STEPS)
    assert made["response"] == [{"role": "assistant", "content": "2 and 3<extra_0>6<extra_0>"}]
    assert made["scores"] == [1.0, 0.0] and made["prompt"] == TALK[:1]
    with pytest.raises(RowError, match="leave --labels out"):
        labels_of(row, ("kind",))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"labels": [True]}, "one for each of the 2 completions"),
        ({"labels": [True, 0.5]}, "a list of true and false"),
        ({"completions": ["a", ""]}, "a list of texts, one for each step"),
        ({"completions": ["a<extra_0>", "b"]}, "its text has <extra_0>"),
    ],
)
def test_steps_that_can_not_be_trained_on_are_said(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(RowError, match=why):
        scored_of({"prompt": "p", "completions": ["a", "b"], "labels": [True, False], **changed}, STEPS)


def test_a_process_reward_model_is_planned_with_its_head() -> None:
    request = flags().labelled(TrainingRequest("reward", freeze_base=True), STEPS)
    assert (request.num_labels, request.step_labels) == (2, True)
    spec = TrainingJobs.spec()
    (model,) = cast_of(spec, request)
    hidden = spec.hidden_size
    assert model.trainable == hidden * hidden + hidden + 2 * hidden + 2
    with pytest.raises(UsageError, match="--freeze-base in place of --lora-rank"):
        flags().labelled(TrainingRequest("reward", lora_rank=8), STEPS)


def test_a_file_of_scores_is_prepared_and_its_broken_rows_are_named_by_line(tmp_path: Path) -> None:
    split = "\x85\u2028\u2029"  # line breaks of Unicode, but none of JSON lines
    rows = [{"prompt": f"{n}+1?", "response": f"{n + 1}{split}", "scores": {"kind": n, "short": 1}} for n in range(60)]
    rows[7]["scores"] = {"kind": 1}
    file = tmp_path / "scores.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = check_source(str(file), "reward")
    assert labels == ("kind", "short")
    source = DataSource(str(file), eval_share=0.3, max_broken_share=0.05, labels=labels)
    data = prepare(source, "reward", tmp_path / "data", tmp_path / "run")
    assert data.num_broken == 1 and data.columns == ("prompt", "response", "scores") and data.num_eval > 5
    (broken,) = map(json.loads, (tmp_path / "run" / "broken.jsonl").read_text().splitlines())
    assert broken == {"source": "scores.jsonl:8", "why": "has no score 'short'; it has kind"}
    asked = pairs_to_score(tmp_path / "data" / "test.jsonl", [{"row": 2, "given": [0.0, 0.0]}])
    question, answer = asked[0]["messages"]
    assert answer["content"] == f"{int(question['content'][:-3]) + 1}{split}"


def flags(**given: Any) -> TrainFlags:
    return TrainFlags.of({**{one.name: None for one in fields(TrainFlags)}, "label_smoothing": 0.0, **given})


def test_the_request_counts_labels_and_single_texts() -> None:
    request = flags(labels="kind, short").labelled(TrainingRequest("reward", micro_batch=4), ("kind", "short"))
    assert (request.num_labels, request.sequences) == (2, 4)
    assert flags().labelled(TrainingRequest("reward", micro_batch=4), ()).sequences == 8
    spec = TrainingJobs.spec()
    (model,) = cast_of(spec, request)
    (head,) = [tensor for tensor in model.tensors if tensor.role == "head"]
    assert head.shape == (2, spec.hidden_size)
    assert TrainingJobs.plan(request).fits


class TrainingJobs:
    """The demo model on a CPU."""

    @staticmethod
    def spec() -> Any:
        from qserve.hub import resolve

        return resolve("demo").spec

    @classmethod
    def plan(cls, request: TrainingRequest) -> Any:
        cpu = Hardware((), 8 * GIB, 6 * GIB, 2).cpu_device
        return TrainingJob("demo", cls.spec(), "none", (cpu,), replace(request, precision="fp32")).plan()


@pytest.mark.parametrize(
    ("given", "labels", "said"),
    [
        ({"label_weights": "kind=1,long=2"}, ("kind", "short"), "--label-weights names 'long'.*kind, short"),
        ({"label_weights": "kind=x"}, ("kind",), "--label-weights 'kind=x'"),
        ({"label_weights": "kind=1"}, (), "its rows are pairs"),
        ({"center_rewards": 0.01}, ("kind",), "leave it out"),
        ({"label_smoothing": 0.1}, ("kind",), "is for pairs"),
    ],
)
def test_flags_against_the_data_are_refused(given: dict[str, Any], labels: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        flags(**given).labelled(TrainingRequest("reward"), labels)
    with pytest.raises(UsageError, match="--num-labels is 3, but the data has 1 scores a row: kind"):
        flags().labelled(TrainingRequest("reward", num_labels=3), ("kind",))
    with pytest.raises(UsageError, match="--num-labels is for reward models"):
        TrainingRequest("sft", num_labels=2)


def test_the_run_is_written_read_and_configured(tmp_path: Path) -> None:
    data = DataSource("d.jsonl", labels=("kind", "short"))
    request = TrainingRequest("reward", num_labels=2, lora_rank=8)
    run = TrainingRun(request, "/model", data, tmp_path, schedule=Schedule(patience=2), label_weights={"kind": 1.0})
    assert TrainingRun.read(run.write()) == run
    made = trl_configuration(run, 100, 10)
    assert (made["metric_for_best_model"], made["greater_is_better"]) == ("eval_loss", False)
    assert made["lora_modules_to_save"] == ["score"]
    assert "scores of kind, short" in beyond_trl(run)[0]
    with pytest.raises(UsageError, match="--num-labels"):
        emitted(run, "ms-swift")


def test_how_good_it_is_is_told_by_label(tmp_path: Path) -> None:
    file = tmp_path / "held_out.jsonl"
    rows = [{"row": n, "scores": [n, 1.0], "given": [n + 0.5, 0.0], "tokens": 5} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = quality_in(file, ("kind", "short"))
    assert found is not None
    kind, short = found["by_label"]
    assert (kind["mse"], kind["mean_mse"], round(kind["rank_correlation"], 9)) == (0.25, 1.25, 1.0)
    assert (short["mse"], short["mean_mse"], short["rank_correlation"]) == (1.0, 0.0, None)
