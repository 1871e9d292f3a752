"""Heads of several labels and rerankers: each value by name, one number by weights, equal to plain transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from qserve.errors import UsageError
from qserve.reward.checkpoints import recognise
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import CASES, Host
from tests.tiny.reward.plain_transformers import Plain

NAMES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
WEIGHTS = {"helpfulness": 0.65, "correctness": 0.8, "verbosity": -0.4}
PROMPT, ANSWERS = "What is 17+25?", ("It is 42.", "I do not know.")
# Those whose answer holds the head's values in a list, or each with its label, and no single number.
LISTS = {name for name in CASES if name.startswith(("vllm classify", "vllm pooling", "verl", "sglang", "tei predict"))}


@pytest.fixture(scope="module")
def host(opened: Opener) -> Iterator[Host]:
    weights = ",".join(f"{name}={value}" for name, value in WEIGHTS.items())
    one = Host(opened("multi-attribute", weights=weights))
    yield one
    one.close()


@pytest.fixture(scope="module")
def values(made: Callable[[str], Path], opened: Opener) -> list[list[float]]:
    """The five logits of each answer in plain transformers."""
    model = AutoModelForSequenceClassification.from_pretrained(made("multi-attribute"), dtype=torch.float32).eval()
    template = opened("multi-attribute").template
    turns = [[{"role": "user", "content": PROMPT}, {"role": "assistant", "content": answer}] for answer in ANSWERS]
    with torch.no_grad():
        ids = [torch.tensor([template.encode(one).token_ids]) for one in turns]
        return [model(one).logits[0].tolist() for one in ids]


def weighted(values: list[float]) -> float:
    return sum(WEIGHTS.get(name, 0) * value for name, value in zip(NAMES, values, strict=True))


@pytest.mark.parametrize("case", sorted(set(CASES) - LISTS))
def test_every_protocol_of_one_number_tells_the_weighted_sum(case: str, host: Host, values: list[list[float]]) -> None:
    assert CASES[case](host, PROMPT, ANSWERS) == pytest.approx([weighted(one) for one in values], abs=1e-5)


def texts(host: Host) -> list[str]:
    turns = [[{"role": "user", "content": PROMPT}, {"role": "assistant", "content": answer}] for answer in ANSWERS]
    return [host.scorer.template.render(one) for one in turns]


@pytest.mark.parametrize("case", sorted(LISTS))
def test_every_protocol_of_a_list_carries_the_labels(case: str, host: Host, values: list[list[float]]) -> None:
    """verl reads the last of them, text-embeddings-inference tells the largest first."""
    meant = [max(one) if case.startswith("tei") else one[-1 if case.startswith("verl") else 0] for one in values]
    assert CASES[case](host, PROMPT, ANSWERS) == pytest.approx(meant, abs=1e-5)


def test_attributes_come_by_name(host: Host, values: list[list[float]]) -> None:
    answer = host.post("/v1/reward", prompt=PROMPT, responses=list(ANSWERS))
    for row, one in zip(answer["data"], values, strict=True):
        assert row["attributes"] == pytest.approx(dict(zip(NAMES, one, strict=True)), abs=1e-5)
    assert answer["meta"]["weights"] == {name: WEIGHTS.get(name, 0) for name in NAMES}


def test_classifiers_protocols_carry_all_labels(host: Host, values: list[list[float]]) -> None:
    asked = texts(host)
    raw = host.post("/classify", input=asked, use_activation=False)["data"]
    assert [row["probs"] for row in raw] == [pytest.approx(one, abs=1e-5) for one in values]
    assert {row["num_classes"] for row in raw} == {5}
    assert [row["label"] for row in raw] == [NAMES[one.index(max(one))] for one in values]
    shares = [torch.tensor(one).softmax(-1).tolist() for one in values]
    assert [row["probs"] for row in host.post("/classify", input=asked)["data"]] == [
        pytest.approx(one, abs=1e-5) for one in shares
    ]
    vectors = host.post("/v1/embeddings", input=asked)["data"]
    assert [row["embedding"] for row in vectors] == [pytest.approx(one, abs=1e-5) for one in values]
    assert host.post("/classify", text=asked)[1]["embedding"] == pytest.approx(values[1], abs=1e-5)
    (predicted,) = host.post("/predict", inputs=[[asked[0]]], raw_scores=True)
    assert {one["label"]: one["score"] for one in predicted} == pytest.approx(
        dict(zip(NAMES, values[0], strict=True)), abs=1e-5
    )
    assert predicted[0]["score"] == max(one["score"] for one in predicted)
    refused = host.client.post("/pooling", json={"input": asked, "task": "token_classify"})
    assert refused.status_code == 400 and "one label" in refused.text


@pytest.mark.parametrize(
    ("weights", "words"),
    [("helpfullness=1", "not a label.*it has helpfulness, corr"), ("helpfulness", "NAME=NUMBER"), ("=1", "NAME=")],
)
def test_weights_that_fit_no_label_are_one_sentence(weights: str, words: str, made: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=words):
        recognise(made("multi-attribute"), RewardSettings(weights=weights))


def test_weights_of_the_config_and_none_at_all(made: Callable[[str], Path], tmp_path: Path) -> None:
    found = recognise(made("multi-attribute"), RewardSettings())
    assert found.weights == (0.2,) * 5
    assert "--weights helpfulness=1" in found.notes[0]
    folder = Path(shutil.copytree(made("multi-attribute"), tmp_path / "weighed"))
    config = json.loads((folder / "config.json").read_text()) | {"reward_weights": [1, 2, 3, 4, 5]}
    (folder / "config.json").write_text(json.dumps(config))
    assert recognise(folder, RewardSettings()).weights == (1.0, 2.0, 3.0, 4.0, 5.0)
    with pytest.raises(UsageError, match="one number per text"):
        recognise(made("sequence-classification"), RewardSettings(weights="a=1"))


def test_a_reranker_says_the_probability_of_yes(made: Callable[[str], Path], opened: Opener) -> None:
    """Query and document by its own template; /score as vLLM answers it for Qwen3-Reranker."""
    path, one = made("reranker"), Host(opened("reranker", truncate="refuse"))
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        tokenizer = one.scorer.loaded.tokenizer
        text = one.scorer.template.render(
            [{"role": "user", "content": "capital of China"}, {"role": "assistant", "content": "Beijing"}]
        )
        assert text.startswith("<|im_start|>system\nJudge whether the Document") and text.endswith("</think>\n\n")
        assert "\n<Query>: capital of China\n<Document>: Beijing<|im_end|>" in text
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer.encode(text)])).logits[0, -1]
        yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
        share = float(torch.stack((logits[no], logits[yes])).log_softmax(0)[1].exp())
        (row,) = one.post("/score", queries="capital of China", documents=["Beijing"])["data"]
        assert row["score"] == pytest.approx(share, abs=1e-5)
    finally:
        one.close()


def test_a_trained_reranker_over_every_protocol(made: Callable[[str], Path], opened: Opener) -> None:
    """The demo, which knows larger numbers: as plain transformers to 1e-5, and right."""
    kind = "reranker of the demo"
    path = made(kind)
    one, plain = Host(opened(kind, template=str(path / "larger.jinja"))), Plain(kind, path)

    def meant(query: str, document: str) -> float:
        turns = [{"role": "user", "content": query}, {"role": "assistant", "content": document}]
        return float(plain.values(one.scorer.template.encode(turns).token_ids)[-1, 0])

    try:
        expected = [meant("81", document) for document in ("9", "97")]
        assert expected[0] > 0 > expected[1]
        for case in CASES:
            assert CASES[case](one, "81", ("9", "97")) == pytest.approx(expected, abs=1e-5), case
        rng = Random(3)
        asked = {query: rng.sample(range(100), 10) for query in rng.sample(range(100), 10)}
        for query, documents in asked.items():
            rows = one.post("/rerank", query=str(query), documents=list(map(str, documents)))["results"]
            scores = {row["index"]: row["relevance_score"] for row in rows}
            right = sum((scores[index] > 0.5) == (query > number) for index, number in enumerate(documents))
            assert right >= 9, (query, documents)
    finally:
        one.close()


def test_a_causal_model_with_named_tokens_is_a_reranker(made: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made("reranker"), tmp_path / "plain"))
    config = json.loads((folder / "config.json").read_text())
    del config["classifier_from_token"]
    (folder / "config.json").write_text(json.dumps(config))
    ids = recognise(folder, RewardSettings(answer_tokens="yes,no")).head.answer_ids
    assert ids == recognise(made("reranker"), RewardSettings()).head.answer_ids
    named = Path(shutil.copytree(folder, tmp_path / "Qwen3-Reranker-0.6B"))
    assert recognise(named, RewardSettings()).head.answer_ids == ids
    with pytest.raises(UsageError, match="name two tokens"):
        recognise(folder, RewardSettings(answer_tokens="yes"))
