"""`qserve eval` on the served demo gives what lm-eval's own transformers model gives on the same folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qserve.errors import UsageError, WorkerFailed
from qserve.evaluation import tasks as tasks_module
from qserve.evaluation.comparison.diff import compare
from qserve.evaluation.harness import evaluate
from qserve.evaluation.preflight import check
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.results import EvalResult
from qserve.evaluation.server import ServedModel, inspect_server
from qserve.evaluation.tasks import load_tasks
from tests.tiny.serving.plain_transformers import Reference
from tests.tiny.serving.served import Service
from tests.tiny.serving.thinking import EVALS, check_scores, check_thinking_budget, in_process

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")

LIMIT = 40
TASKS = ("qserve_demo_choice", "qserve_demo_generate", "qserve_demo_text")
# What lm-eval, datasets and their dependencies warn of is theirs.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("offline_hub")]


@pytest.fixture(scope="module")
def own(demo: Path) -> dict[str, Any]:
    return in_process(demo, "float32", list(TASKS), LIMIT)


@pytest.fixture(scope="module")
def seen(service: Service, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return inspect_server(service.url, "", None, None, tmp_path_factory.mktemp("tokenizers"))


class Evaluation(NamedTuple):
    result: dict[str, Any]
    cache: Path


@pytest.fixture(scope="module")
def evaluation(seen: ServedModel, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    cache = tmp_path_factory.mktemp("cache")
    return Evaluation(evaluate(seen, EvalRequest(TASKS, limit=LIMIT), cache, lambda answered, wanted: None), cache)


@pytest.fixture(scope="module")
def served(evaluation: Evaluation) -> dict[str, Any]:
    return evaluation.result


def test_everything_is_asked_of_the_server(seen: ServedModel, demo: Path) -> None:
    assert (seen.model, seen.max_model_len) == ("demo", 2048)
    assert (Path(seen.tokenizer) / "tokenizer.json").read_bytes() == (demo / "tokenizer.json").read_bytes()
    assert (seen.run["engine"], seen.run["dtype"]) == ("transformers", "float32")


def test_the_preflight_sees_the_same_log_probabilities_both_ways(seen: ServedModel) -> None:
    assert check(seen) < 1e-4


def test_an_evaluation_that_is_repeated_asks_nothing_again(seen: ServedModel, evaluation: Evaluation) -> None:
    heard: list[tuple[int, int]] = []
    again = evaluate(seen, EvalRequest(TASKS, limit=LIMIT), evaluation.cache, lambda *counts: heard.append(counts))
    assert not heard
    assert again["results"] == evaluation.result["results"]


def test_the_same_seed_gives_the_same_answers(seen: ServedModel, served: dict[str, Any]) -> None:
    """Though requests arrive, and are packed, in another order each time.

    On the machines seen it is bit for bit; a BLAS whose sums depend on the number of rows may differ in the last digit.
    """
    again = evaluate(seen, EvalRequest(TASKS, limit=LIMIT), None, lambda answered, wanted: None)
    one, other = EvalResult({}, again), EvalResult({}, served)
    assert [score.value for score in one.scores()] == pytest.approx([score.value for score in other.scores()], rel=1e-6)
    assert one.scores()[0].value == other.scores()[0].value
    for diff in compare(one, other):
        print(f"{diff.task}: {diff.drift}")
        assert not diff.flips and (diff.drift is None or diff.drift.largest < 1e-4)
    texts = (_by_doc(of["samples"]["qserve_demo_generate"]) for of in (again, served))
    assert all(mine["filtered_resps"] == theirs["filtered_resps"] for mine, theirs in zip(*texts, strict=True))


def test_a_server_that_goes_away_is_one_sentence(seen: ServedModel, tmp_path: Path) -> None:
    gone = replace(seen, url="http://127.0.0.1:1")
    with pytest.raises(WorkerFailed, match=r"stopped answering: .*the same command continues"):
        evaluate(gone, EvalRequest(TASKS[:1], limit=1), tmp_path, lambda answered, wanted: None)


def test_what_cannot_be_asked_is_one_sentence(
    seen: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "away.yaml").write_text(
        "task: away\ndataset_path: nobody/nothing\noutput_type: multiple_choice\ntest_split: test\n"
        'doc_to_text: "{{q}}"\ndoc_to_choice: c\ndoc_to_target: t\n'
    )

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'nobody/nothing' on the Hub")  # as datasets does, after many tries

    monkeypatch.setattr("qserve.evaluation.tasks.task_folders", lambda: [tmp_path])
    monkeypatch.setattr("qserve.evaluation.task_names.task_folders", lambda: [tmp_path])
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UsageError, match=r"data of away can't be read.*--suite offline"):
        load_tasks(("away",))
    monkeypatch.undo()
    real = tasks_module._manager
    monkeypatch.setattr(
        tasks_module, "_manager", lambda include_defaults, folders: real(False, folders)
    )  # listing all takes seconds
    with pytest.raises(UsageError, match="--tasks nothing_of_that_name"):
        load_tasks(("qserve_demo_choice", "nothing_of_that_name"))
    with pytest.raises(UsageError, match="--tokenizer /nowhere"):
        evaluate(replace(seen, tokenizer="/nowhere"), EvalRequest(TASKS[:1]), None, lambda answered, wanted: None)


def test_perplexities_agree(own: dict[str, Any], served: dict[str, Any]) -> None:
    for metric in ("bits_per_byte,none", "byte_perplexity,none"):
        mine, theirs = (of["results"]["qserve_demo_text"][metric] for of in (served, own))
        assert mine == pytest.approx(theirs, rel=1e-4)


def test_the_perplexity_of_a_file_is_plain_transformers(seen: ServedModel, plain: Reference, tmp_path: Path) -> None:
    """Longer than a request may be: two windows, the last one filled up with what stands before it."""
    lines = (EVALS / "qserve_demo" / "text.jsonl").read_text().splitlines()
    (tmp_path / "mine.txt").write_text(text := "\n".join(json.loads(line)["text"] for line in lines)[:9000])
    told = evaluate(seen, EvalRequest((str(tmp_path / "mine.txt"),)), None, lambda answered, wanted: None)
    (figures,) = told["results"].values()
    ids, length = plain.tokenizer(text, add_special_tokens=False)["input_ids"], seen.max_model_len - 2
    assert length < len(ids) < 2 * length
    first = plain.token_logprobs([plain.tokenizer.eos_token_id, *ids[:length]])
    last = plain.token_logprobs(ids[-length - 1 :])[-(len(ids) - length) :]
    nats = -(sum(first) + sum(last))
    assert figures["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / len(text.encode()), rel=1e-3)
    assert figures["byte_perplexity,none"] == pytest.approx(math.exp(nats / len(text.encode())), rel=1e-3)
    assert figures["word_perplexity,none"] == pytest.approx(math.exp(nats / len(text.split())), rel=1e-3)


def test_accuracies_are_equal(own: dict[str, Any], served: dict[str, Any]) -> None:
    for task, metric in (("qserve_demo_choice", "acc,none"), ("qserve_demo_generate", "exact_match,none")):
        print(f"{task}: {served['results'][task][metric]:.3f} of {LIMIT}")
        assert served["results"][task][metric] == own["results"][task][metric], task


def test_log_likelihoods_agree_to_1e_4(own: dict[str, Any], served: dict[str, Any]) -> None:
    mine, theirs = (of["samples"]["qserve_demo_choice"] for of in (served, own))
    assert len(mine) == len(theirs) == LIMIT
    worst = 0.0
    for one, other in zip(_by_doc(mine), _by_doc(theirs), strict=True):
        for (logprob, greedy), (meant, meant_greedy) in zip(
            one["filtered_resps"], other["filtered_resps"], strict=True
        ):
            worst = max(worst, abs(logprob - meant))
            assert greedy == meant_greedy
    print(f"largest difference of a log-likelihood: {worst:.2e}")
    assert worst < 1e-4


def test_generated_answers_are_equal(own: dict[str, Any], served: dict[str, Any]) -> None:
    mine, theirs = (_by_doc(of["samples"]["qserve_demo_generate"]) for of in (served, own))
    assert [one["filtered_resps"] for one in mine] == [one["filtered_resps"] for one in theirs]


@pytest.mark.parametrize("on", [True, False], ids=["thinking on", "thinking off"])
def test_a_model_that_thinks_scores_as_in_process(on: bool, demo: Path, seen: ServedModel) -> None:
    check_scores(seen, demo, on, limit=40)


def test_a_thinking_budget_ends_thoughts(seen: ServedModel) -> None:
    check_thinking_budget(seen)


def test_bf16_is_within_one_flipped_answer_in_200(bf16_service: Service, demo: Path, tmp_path: Path) -> None:
    """Two ways through a 16-bit model may round near ties apart; more than one in 200 is a mistake."""
    own = in_process(demo, "bfloat16", ["qserve_demo_choice"], 200)
    seen = inspect_server(bf16_service.url, "", None, None, tmp_path)
    served = evaluate(seen, EvalRequest(("qserve_demo_choice",), limit=200), None, lambda answered, wanted: None)
    (diff,) = compare(EvalResult({}, own), EvalResult({}, served))
    print(f"bf16: {len(diff.flips)} of {diff.num_items} flipped, {diff.drift}")
    assert diff.num_items == 200
    assert len(diff.flips) <= 1


def _by_doc(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(samples, key=lambda sample: sample["doc_id"])
