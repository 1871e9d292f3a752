"""`qserve eval` on the served demo gives what lm-eval's own transformers model gives on the same folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qserve.evaluation.harness import Asked, evaluate
from qserve.evaluation.preflight import check
from qserve.evaluation.server import ServedModel, look_at
from tests.tiny.serving.served import Service

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'qserve[eval]'")

EVALS = Path(__file__).parents[3] / "evals"
LIMIT = 40
TASKS = ("qserve_demo_choice", "qserve_demo_generate", "qserve_demo_text")
# What lm-eval, datasets and their dependencies warn of is theirs.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


@pytest.fixture(scope="module")
def own(demo: Path) -> dict[str, Any]:
    import torch
    from lm_eval.tasks import TaskManager

    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        results = lm_eval.simple_evaluate(
            model="hf",
            model_args={"pretrained": str(demo), "dtype": "float32", "device": "cpu", "batch_size": 8},
            tasks=list(TASKS),
            task_manager=TaskManager(include_path=str(EVALS), include_defaults=False),
            limit=LIMIT,
            bootstrap_iters=0,
        )
    assert results is not None
    return results


@pytest.fixture(scope="module")
def seen(service: Service, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return look_at(service.url, "", None, None, tmp_path_factory.mktemp("tokenizers"))


class Evaluation(NamedTuple):
    result: dict[str, Any]
    cache: Path


@pytest.fixture(scope="module")
def evaluation(seen: ServedModel, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    cache = tmp_path_factory.mktemp("cache")
    return Evaluation(evaluate(seen, Asked(TASKS, limit=LIMIT), cache, lambda answered, wanted: None), cache)


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
    again = evaluate(seen, Asked(TASKS, limit=LIMIT), evaluation.cache, lambda *counts: heard.append(counts))
    assert not heard
    assert again["results"] == evaluation.result["results"]


def test_perplexities_agree(own: dict[str, Any], served: dict[str, Any]) -> None:
    for metric in ("bits_per_byte,none", "byte_perplexity,none"):
        mine, theirs = (of["results"]["qserve_demo_text"][metric] for of in (served, own))
        assert mine == pytest.approx(theirs, rel=1e-4)


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


def _by_doc(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(samples, key=lambda sample: sample["doc_id"])
