"""Formats × protocols over HTTP: whoever asks, and however, gets what plain transformers says in float32."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import CASES, KEY, MODEL, Host
from tests.tiny.reward.plain_transformers import Plain

# One of each of the seven formats, and a hybrid body.
KINDS = (
    "sequence-classification",
    "sequence-classification of a hybrid",
    "reward-model",
    "process-reward-model",
    "value-head",
    "reward-head with bias",
    "lora",
    "openrlhf",
    "reranker",
)
PROMPT = "What is 17+25?"
ANSWERS = ("It is 42.", "I do not know, but 17+25 is surely a number between 10 and 100.")
SIMPLE = "sequence-classification"

Hosting = Callable[[str], Host]


@pytest.fixture(scope="module")
def host(opened: Opener) -> Iterator[Hosting]:
    """`host(kind)`: a worker over a checkpoint of that kind."""
    running: list[Host] = []

    @cache
    def start(kind: str) -> Host:
        running.append(Host(opened(kind, truncate="refuse")))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.fixture(scope="module")
def plain(made: Callable[[str], Path]) -> Callable[[str], Plain]:
    return cache(lambda kind: Plain(kind, made(kind)))


def answers_for(kind: str) -> tuple[str, ...]:
    """A process reward model reads its step tokens."""
    return tuple(f"{text}<extra_0> Done.<extra_0>" for text in ANSWERS) if kind.startswith("process") else ANSWERS


def meant(kind: str, host: Host, plain: Plain) -> list[float]:
    template, rewards = host.scorer.template, []
    for answer in answers_for(kind):
        messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": answer}]
        ids = template.encode(template.render(messages)).token_ids
        values = plain.values(ids)
        if kind.startswith("process"):
            step = plain.tokenizer.convert_tokens_to_ids("<extra_0>")
            last = max(index for index, token in enumerate(ids) if token == step)
            rewards.append(float(values[last].softmax(-1)[1]))
        else:
            rewards.append(float(values[-1, 0]))
    return rewards


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_protocol_tells_what_plain_transformers_says(
    kind: str, case: str, host: Hosting, plain: Callable[[str], Plain]
) -> None:
    one = host(kind)
    expected = meant(kind, one, plain(kind))
    assert abs(expected[0] - expected[1]) > 1e-3  # else equality would say little
    assert CASES[case](one, PROMPT, answers_for(kind)) == pytest.approx(expected, abs=1e-5)


def test_activated_scores_are_the_sigmoid(host: Hosting, plain: Callable[[str], Plain]) -> None:
    one = host(SIMPLE)
    expected = [1 / (1 + math.exp(-value)) for value in meant(SIMPLE, one, plain(SIMPLE))]
    scores = one.post("/score", text_1=PROMPT, text_2=list(ANSWERS))["data"]
    assert [row["score"] for row in scores] == pytest.approx(expected, abs=1e-5)
    predicted = one.post("/predict", inputs=[[PROMPT, answer] for answer in ANSWERS])
    assert [row[0]["score"] for row in predicted] == pytest.approx(expected, abs=1e-5)


def test_token_classify_is_the_head_at_every_token(host: Hosting, plain: Callable[[str], Plain]) -> None:
    one, ids = host(SIMPLE), list(range(40, 60))
    (row,) = one.post("/pooling", input=ids, task="token_classify", use_activation=False)["data"]
    values = plain(SIMPLE).values(ids)[:, 0].tolist()
    assert [value[0] for value in row["data"]] == pytest.approx(values, abs=1e-5)


def test_steps_in_a_list_are_joined_as_in_training(host: Hosting) -> None:
    one = host("process-reward-model")
    listed = one.post("/v1/reward", prompt=PROMPT, responses=[["Add them.", " It is 42."]])["data"][0]
    written = one.post("/v1/reward", prompt=PROMPT, responses=["Add them.<extra_0> It is 42.<extra_0>"])["data"][0]
    assert len(listed["steps"]) == 2
    assert listed["steps"] == pytest.approx(written["steps"], abs=1e-6)
    assert listed["reward"] == listed["steps"][-1]


def test_openrlhf_s_own_mean_and_standard_deviation(host: Hosting) -> None:
    one = host("openrlhf")
    mean, std = one.scorer.meta["mean"], one.scorer.meta["std"]
    raw, scaled = (
        one.post("/v1/reward", prompt=PROMPT, responses=list(ANSWERS), normalize=normalize)
        for normalize in (False, True)
    )
    for before, after in zip(raw["data"], scaled["data"], strict=True):
        assert after["reward"] == pytest.approx((before["reward"] - mean) / std)
    assert raw["ranking"] == scaled["ranking"]


def test_the_meta_says_how_the_score_came_about(host: Hosting) -> None:
    answer = host(SIMPLE).post("/v1/reward", texts=["some text"])
    assert (
        answer["meta"].items()
        >= {
            "pooling": "not-pad",
            "dtype": "float32",
            "format": SIMPLE,
            "truncated": 0,
            "truncate": "refuse",
            "template_hash": host(SIMPLE).scorer.template.template_hash,
        }.items()
    )
    assert answer["usage"]["total_tokens"] == answer["data"][0]["num_tokens"]
    assert answer["latency_ms"] > 0


def test_openai_s_client_asks_as_verl_and_swift_do(host: Hosting, plain: Callable[[str], Plain]) -> None:
    one = host(SIMPLE)
    expected = meant(SIMPLE, one, plain(SIMPLE))
    with openai.OpenAI(base_url=f"{one.url}/v1", api_key=KEY, max_retries=0) as client:
        turns = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": ANSWERS[0]}]
        reply = client.chat.completions.create(model=MODEL, messages=turns)  # type: ignore[arg-type]
        assert float(reply.choices[0].message.content or "") == pytest.approx(expected[0], abs=1e-5)
        text = one.scorer.template.render(turns)
        vectors = client.embeddings.create(model=MODEL, input=[text], encoding_format="float")
        assert vectors.data[0].embedding == pytest.approx([expected[0]], abs=1e-5)
        # Left to itself the client asks for base64 and unpacks it.
        assert client.embeddings.create(model=MODEL, input=[text]).data[0].embedding[0] == pytest.approx(
            expected[0], abs=1e-5
        )


def test_hugging_face_s_client_asks_as_of_a_classifier(host: Hosting, plain: Callable[[str], Plain]) -> None:
    one = host(SIMPLE)
    turns = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": ANSWERS[0]}]
    client = InferenceClient(model=f"{one.url}/predict", token=KEY)
    answer: Any = client.text_classification(one.scorer.template.render(turns))
    expected = 1 / (1 + math.exp(-meant(SIMPLE, one, plain(SIMPLE))[0]))
    assert answer.score == pytest.approx(expected, abs=1e-5)
    with pytest.raises(HfHubHTTPError, match="empty text"):
        client.text_classification("")


def test_64_clients_with_one_text_each_and_bad_ones_among_them(host: Hosting, plain: Callable[[str], Plain]) -> None:
    """OpenRLHF's flood. What is wrong is answered at once, and nobody else's score moves."""
    one = host(SIMPLE)
    texts = [f"question {number} " * (1 + number % 9) + "answer" for number in range(64)]
    bad = {3: "", 17: "word " * 100_000, 40: None, 41: 5}

    def ask(number: int) -> tuple[int, float | None]:
        reply = one.client.post("/get_reward", json={"query": [bad.get(number, texts[number])]})
        return reply.status_code, reply.json()["rewards"][0] if reply.status_code == 200 else None

    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(ask, range(64)))
    for number, (status, reward) in enumerate(replies):
        if number in bad:
            assert (status, reward) == (400, None)
        else:
            ids = one.scorer.template.encode(texts[number]).token_ids
            assert reward == pytest.approx(float(plain(SIMPLE).values(ids)[-1, 0]), abs=1e-5)


@pytest.mark.parametrize(
    ("path", "body", "code", "words"),
    [
        ("/v1/reward", {"texts": ["ok", "word " * 100_000]}, "context_length_exceeded", "'texts.1'"),
        ("/v1/reward", {"token_ids": [[1, 999_999]]}, "invalid_value", "the token id 999999, which has no row"),
        ("/v1/reward", {"prompt": PROMPT, "responses": [""]}, "empty_input", "'responses.0'"),
        ("/classify", {"messages": [{"role": "judge", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ("/predict", {"inputs": "word " * 100_000}, "context_length_exceeded", "max_length"),
    ],
)
def test_bad_input_is_told_with_its_place(
    path: str, body: dict[str, object], code: str, words: str, host: Hosting
) -> None:
    reply = host(SIMPLE).client.post(path, json=body)
    value = reply.json()
    # text-embeddings-inference's own shape has no object in it.
    error = {"code": value["code"], "message": value["error"]} if path == "/predict" else value["error"]
    assert (reply.status_code, error["code"]) == (400, code)
    assert words in error["message"]


def test_a_process_reward_model_wants_steps(host: Hosting) -> None:
    reply = host("process-reward-model").client.post("/classify", json={"input": "no step in here"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "no_steps")


@pytest.mark.parametrize("body", [b'{"query": ["half', b"", b"\xff\xfe", b'{"query": ["a"]}}'])
def test_half_a_json(body: bytes, host: Hosting) -> None:
    reply = host(SIMPLE).client.post("/get_reward", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_json")


def test_long_texts_are_cut_where_the_request_says_so_and_counted(host: Hosting, plain: Callable[[str], Plain]) -> None:
    one = host(SIMPLE)
    ids = [40 + index % 300 for index in range(60)]
    cut = one.post("/v1/reward", token_ids=[ids, ids[:5]], truncate="left", max_length=20)
    assert [row["truncated"] for row in cut["data"]] == [True, False]
    assert cut["meta"]["truncated"] == 1
    assert cut["data"][0]["reward"] == pytest.approx(float(plain(SIMPLE).values(ids[-20:])[-1, 0]), abs=1e-5)
    kept = one.post("/classify", input=ids, truncate_prompt_tokens=20, use_activation=False)
    assert kept["data"][0]["probs"][0] == pytest.approx(float(plain(SIMPLE).values(ids[:20])[-1, 0]), abs=1e-5)
    assert one.post("/predict", inputs="word " * 5000, truncate=True)[0]["score"] > 0


def test_the_worker_is_for_the_gateway_only(host: Hosting) -> None:
    reply = host(SIMPLE).client.get("/v1/models", headers={"authorization": "Bearer other"})
    assert reply.status_code == 401


def test_what_the_gateway_and_the_supervisor_ask(host: Hosting) -> None:
    one = host(SIMPLE)
    assert one.client.get("/health").json() == {"status": "ok"}
    (card,) = one.client.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == (MODEL, one.scorer.max_length)
    assert one.client.get("/v1/qserve/memory").json()["weights_bytes"] > 0


def test_metrics_tell_batches_padding_and_latency_by_length(host: Hosting) -> None:
    one = host(SIMPLE)
    before, padded = _metrics(one), one.scorer.stats.num_padding_tokens
    one.post("/v1/reward", token_ids=[[41] * 10, [42] * 100])
    after = _metrics(one)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["qserve_reward_texts_total"] == 2
    assert grown["qserve_reward_tokens_total"] == 110
    assert grown['qserve_reward_latency_seconds_count{max_tokens="128"}'] == 1
    assert grown['qserve_reward_row_texts_bucket{le="+Inf"}'] >= 1
    assert one.scorer.stats.num_padding_tokens - padded == 2, "110 tokens are computed as a row of 112"
    assert after["qserve_reward_padding_ratio"] == pytest.approx(
        one.scorer.stats.num_padding_tokens / one.scorer.stats.num_computed_tokens
    )


def _metrics(host: Host) -> dict[str, float]:
    lines = host.client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_answers_are_json_that_every_parser_takes(host: Hosting) -> None:
    """No NaN and no Infinity, which JSON does not have."""
    text = host(SIMPLE).client.post("/v1/reward", json={"texts": ["a b c"]}).text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the answer"))


def test_a_client_that_leaves_takes_its_texts_along(host: Hosting) -> None:
    one = host(SIMPLE)
    before = one.scorer.stats.num_items
    ids = [[40 + index % 200] * 900 for index in range(1000)]
    with pytest.raises(httpx.ReadTimeout):
        one.client.post("/v1/reward", json={"token_ids": ids}, timeout=0.5)
    one.post("/v1/reward", token_ids=[[41, 42]])
    assert one.scorer.stats.num_items - before < 1000
