"""`qserve up --model demo --embed …`: a chat and an embedding model behind one port."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from tests.tiny.gateway.fuzz import fuzzed
from tests.tiny.reward.host import TIMEOUT_S, running
from tests.tiny.reward.test_vectors import TEXTS, PlainEmbedder
from tests.tiny.serving.served import Service

NAME = "vectors"


@pytest.fixture(scope="module")
def service(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    flags = ("--model", "demo", "--embed", str(made("embedder")), "--served-embed-name", NAME)
    with running(Service(flags, tmp_path_factory.mktemp("embed"))) as started:
        yield started


@pytest.fixture(scope="module")
def client(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


def test_the_openai_client_gets_vectors(client: openai.OpenAI, made: Callable[[str], Path]) -> None:
    """It asks for base64. The served body is in bf16: to two hundredths."""
    plain = PlainEmbedder(made("embedder"))
    answer = client.embeddings.create(model=NAME, input=TEXTS)
    found = np.array([one.embedding for one in answer.data])
    assert np.abs(found - np.array([plain.of(text) for text in TEXTS])).max() < 2e-2
    assert answer.usage.prompt_tokens == sum(len(plain.ids(text)) for text in TEXTS)
    cut = client.embeddings.create(
        model=NAME, input="12+30", dimensions=16, encoding_format="float", extra_body={"instruction": "Add"}
    )
    assert len(cut.data[0].embedding) == 16


def test_each_model_has_its_routes(service: Service) -> None:
    ready = service.get("/ready").json()
    assert {worker["name"]: worker["role"] for worker in ready["workers"]} == {"chat": "chat", "embed": "embed"}
    kinds = {entry["id"]: entry["kind"] for entry in service.get("/v1/models").json()["data"]}
    assert kinds == {"demo": "chat", NAME: "embed"}
    for path, model, body, said in (
        ("/v1/embeddings", "demo", {"input": "a"}, r"'demo' is a chat model .* is served by 'vectors'"),
        ("/v1/chat/completions", NAME, {"messages": []}, r"an embedding model .* serves /v1/embeddings"),
    ):
        refused = httpx.post(f"{service.url}{path}", json={"model": model, **body}, timeout=TIMEOUT_S)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "route_not_served")
        assert re.search(said, error["message"])
    assert 'qserve_reward_texts_total{worker="embed"}' in service.get("/metrics").text


def test_a_batch_of_vectors(client: openai.OpenAI) -> None:
    lines = [
        {
            "custom_id": str(at),
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": NAME, "input": text, "encoding_format": "float"},
        }
        for at, text in enumerate(TEXTS)
    ]
    file = client.files.create(file=("lines.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    deadline_s = time.monotonic() + TIMEOUT_S
    while batch.status not in ("completed", "failed"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.output_file_id is not None, batch
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert {row["custom_id"]: len(row["response"]["body"]["data"][0]["embedding"]) for row in rows} == {
        str(at): 64 for at in range(len(TEXTS))
    }


def test_the_engines_take_what_the_document_allows_and_answer_as_it_says(service: Service, tmp_path: Path) -> None:
    fuzzed(service.url, tmp_path, max_time_s=8, path="/v1/embeddings")
    assert not re.findall(r'requests_total\{.*status="5\d\d".*', service.get("/metrics").text)
