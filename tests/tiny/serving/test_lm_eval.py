"""lm-eval against the served demo gives what lm-eval's own transformers model gives on the same folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.serving.served import Service

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'qserve[eval]'")

EVALS = Path(__file__).parents[3] / "evals"
LIMIT = 40
# What lm-eval, datasets and their dependencies warn of is theirs.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module", autouse=True)
def _offline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("TOKENIZERS_PARALLELISM", "false")
        yield


def evaluate(kind: str, **arguments: Any) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        results = lm_eval.simple_evaluate(
            model=kind,
            model_args=arguments,
            tasks=["qserve_demo_choice", "qserve_demo_generate"],
            task_manager=TaskManager(include_path=str(EVALS), include_defaults=False),
            limit=LIMIT,
            bootstrap_iters=0,
        )
    assert results is not None
    return results


@pytest.fixture(scope="module")
def own(demo: Path) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    return evaluate("hf", pretrained=str(demo), dtype="float32", device="cpu", batch_size=8)


@pytest.fixture(scope="module")
def served(service: Service, demo: Path) -> dict[str, Any]:
    return evaluate(
        "local-completions",
        model="demo",
        base_url=f"{service.url}/v1/completions",
        tokenizer=str(demo),
        tokenizer_backend="huggingface",
        num_concurrent=8,
        max_length=2047,
    )


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
