"""`qserve up --reward … --reward-engine vllm`: the same protocols and scores over a real vLLM server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from qserve.detect.packages import Packages
from qserve.engines.vllm.detect import version_of
from tests.tiny.reward.host import ANSWERS, CASES, MODEL, PROMPT, SIMPLE, Caller, running
from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import NOT_COMPILED

pytestmark = pytest.mark.skipif(version_of(Packages.installed()) is None, reason="vLLM is not installed")

# Those that read every token; vLLM reads the last one.
ELSEWHERE = {"vllm pooling"}


@pytest.fixture(scope="module")
def service(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    flags = ("--reward", str(made(SIMPLE)), "--served-reward-name", MODEL, "--reward-engine", "vllm")
    folder = tmp_path_factory.mktemp("reward-on-vllm")
    with running(Service((*flags, "--max-length", "512"), folder, NOT_COMPILED)) as started:
        yield started


@pytest.mark.parametrize("case", sorted(set(CASES) - ELSEWHERE))
def test_every_protocol_scores_as_plain_transformers(case: str, caller: Caller, expected: list[float]) -> None:
    assert CASES[case](caller, PROMPT, ANSWERS) == pytest.approx(expected, abs=2e-2)


def test_what_vllm_would_read_elsewhere_is_refused_by_name(caller: Caller) -> None:
    refused = caller.client.post("/pooling", json={"input": "one two", "task": "token_classify"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "position_not_served")
    assert "--reward-engine vllm" in refused.json()["error"]["message"]


def test_a_text_that_ends_in_the_pad_token_is_read_as_the_class_does(
    caller: Caller, made: Callable[[str], Path]
) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(made(SIMPLE), dtype=torch.float32).eval()
    pad = model.config.pad_token_id
    texts = [[40, 41, 42, pad], [40, 41, 42, pad, pad, pad], [40, pad, 41], [pad, pad]]
    with torch.no_grad():
        meant = [float(model(input_ids=torch.tensor([ids])).logits[0, 0]) for ids in texts]
    found = [row["probs"][0] for row in caller.post("/classify", input=texts, use_activation=False)["data"]]
    assert found == pytest.approx(meant, abs=2e-2)


def test_bad_input_is_refused_before_vllm_sees_it(caller: Caller) -> None:
    long = caller.client.post("/v1/reward", json={"texts": ["one two " * 2000]})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    empty = caller.client.post("/v1/reward", json={"prompt": PROMPT, "responses": [""]})
    assert (empty.status_code, empty.json()["error"]["code"]) == (400, "empty_input")


def test_rankers_have_their_own_forms_here_too(caller: Caller) -> None:
    documents = [{"text": "It is 42, as nobody doubts.", "id": 1}, {"text": "I do not know."}]
    cut = [caller.scorer.template.beginning(one["text"], 3) for one in documents]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        asked = caller.post(path, query=PROMPT, documents=documents, max_tokens_per_doc=3, use_activation=False)
        plain = caller.post(path, query=PROMPT, documents=cut, use_activation=False)
        one, other = ({row["index"]: row["relevance_score"] for row in answer["results"]} for answer in (asked, plain))
        assert one == pytest.approx(other, abs=1e-3) and asked["meta"]["truncated"] == 2
        assert all(row["document"] == documents[row["index"]] for row in asked["results"])


def test_the_answer_says_who_computed_and_the_report_what_it_holds(service: Service, caller: Caller) -> None:
    meta = caller.post("/v1/reward", texts=["one two"])["meta"]
    assert meta["engine"].startswith("vllm ")
    assert {"template_hash", "pooling", "max_length", "truncated", "dtype", "quant"} <= set(meta)
    (entry,) = service.get("/v1/qserve/memory").json()["data"]
    assert entry["memory"]["resident_bytes"] > entry["memory"]["kv_cache_bytes"] > 0
    assert service.gauge("qserve_reward_texts_total") > 0
