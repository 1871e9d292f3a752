"""Keys with names of a real service with two gateway processes: every way to ask counts, and the record has it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny.serving.served import QSERVE, Service, until

LINE = {"model": "demo", "messages": [{"role": "user", "content": "What is 12+30?"}], "max_tokens": 4}


def qserve(*words: str) -> str:
    return subprocess.run([str(QSERVE), "keys", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.yaml"


@pytest.fixture(scope="module")
def alice(file: Path) -> dict[str, str]:
    """The header with her key, which `qserve keys add` printed."""
    key = qserve("add", "alice", "--tokens-per-day", "1000000", "--keys", str(file)).strip()
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def service(file: Path, alice: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(
        ("--model", "demo", "--gateway-processes", "2", "--keys", str(file)), tmp_path_factory.mktemp("named")
    )
    yield one.until_ready()
    assert one.end_as_told() == 0


@pytest.fixture(scope="module")
def http(service: Service, alice: dict[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, headers=alice, timeout=120) as one:
        yield one


def used(http: httpx.Client) -> dict[str, Any]:
    (row,) = http.get("/v1/qserve/usage").json()["data"]
    return dict(row)


def test_every_way_to_ask_counts(service: Service, http: httpx.Client) -> None:
    chat = http.post("/v1/chat/completions", json=LINE).json()["usage"]
    assert used(http)["generated_tokens"] == chat["completion_tokens"]
    ask = {"model": "demo", "input": "What is 12+30?", "max_output_tokens": 4, "background": True}
    response_id = http.post("/v1/responses", json=ask).json()["id"]
    in_background: dict[str, Any] = {}

    def is_over() -> bool:
        in_background.update(http.get(f"/v1/responses/{response_id}").json())
        return in_background["status"] not in ("queued", "in_progress")

    until(is_over, 60, "the response is over")
    lines = [
        {"custom_id": str(index), "method": "POST", "url": "/v1/chat/completions", "body": LINE} for index in range(3)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    uploaded = http.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"}).json()
    about = {"input_file_id": uploaded["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = http.post("/v1/batches", json=about).json()["id"]
    until(lambda: http.get(f"/v1/batches/{batch_id}").json()["status"] == "completed", 60, "the batch is over")
    row = used(http)
    assert (row["requests"], row["refused"], row["running"]) == (5, 0, 0)
    assert row["generated_tokens"] == 4 * chat["completion_tokens"] + in_background["usage"]["output_tokens"]
    assert row["prompt_tokens"] == 4 * chat["prompt_tokens"] + in_background["usage"]["input_tokens"]
    state = ("--state-dir", str(service.state))

    def recorded() -> list[dict[str, Any]]:
        return list(json.loads(qserve("usage", "--json", *state)))

    until(lambda: sum(one["num_requests"] for one in recorded()) == 5, 30, lambda: f"all are recorded: {recorded()}")
    for name in ("prompt_tokens", "generated_tokens"):
        assert sum(one[name] for one in recorded()) == row[name], name
    key = http.headers["authorization"].removeprefix("Bearer ").encode()
    assert key.decode() not in service.output
    assert not [path for path in service.state.rglob("*") if path.is_file() and key in path.read_bytes()]


def test_what_a_key_may_be_answered_is_documented(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert {"403", "429"} <= set(paths["/v1/chat/completions"]["post"]["responses"])
    assert set(paths["/v1/qserve/usage"]["get"]["responses"]["200"]["content"]) == {"application/json", "text/csv"}
    for name in ("requests", "tokens"):
        assert f'qserve_gateway_key_{name}_total{{key="alice"' in http.get("/metrics").text


def test_a_limit_of_the_file_holds_from_the_next_request_on(file: Path, service: Service, http: httpx.Client) -> None:
    assert http.post("/v1/chat/completions", json=LINE).status_code == 200
    file.write_text(file.read_text().replace("1000000", "1"))
    until(lambda: http.post("/v1/chat/completions", json=LINE).status_code == 429, 30, "the file was read")
    refused = http.post("/v1/chat/completions", json=LINE)
    assert refused.json()["error"]["code"] == "tokens_per_day_exceeded"
    assert httpx.post(f"{service.url}/v1/chat/completions", json=LINE).status_code == 401
