"""vLLM among the models that take turns: what it takes is known only once it ran, and requests wait for that, too."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.tiny.serving.served import Service

FILE = """
models:
  - {model: demo, served_model_name: [own], max_model_len: 512}
  - {model: demo, served_model_name: [fast], max_model_len: 512, max_num_seqs: 8, engine: vllm, enforce_eager: true}
residency: {memory: 2000MiB}
gateway_processes: 2
ui: false
"""
ASKED = [{"role": "user", "content": "What is 12+30?"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("turns")
    file = folder / "service.yaml"
    file.write_text(FILE)
    one = Service(("--config", str(file)), folder)
    yield one.until_ready()
    assert one.end_as_told() == 0, one.output


def asked(service: Service, **fields: object) -> httpx.Response:
    body = {"messages": ASKED, "max_tokens": 8, "temperature": 0, **fields}
    return httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=300)


def test_its_first_request_waits_until_its_fields_are_known(service: Service) -> None:
    reply = asked(service, model="fast", min_p=0.1)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "42"
    states = {row["name"]: row["state"] for row in service.get("/v1/qserve/models").json()["data"]}
    assert states == {"own": "idle", "fast": "ready"}
    refused = asked(service, model="fast", no_field_of_any_engine=1)
    assert refused.status_code == 400 and "no_field_of_any_engine" in refused.text


def test_the_other_engine_is_loaded_after_it_has_left(service: Service) -> None:
    reply = asked(service, model="own")
    assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] == "42"
    states = {row["name"]: row["state"] for row in service.get("/v1/qserve/models").json()["data"]}
    assert states == {"own": "ready", "fast": "idle"}
