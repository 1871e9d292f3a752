"""An engine in a package of its own is served, measured, benched and evaluated: qserve knows nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import qserve

ECHO = Path(__file__).parents[2] / "echo_engine"
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ECHO)}
COMMAND = [sys.executable, "-m", "qserve"]
TASK = """
task: shouts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: generate_until
test_split: test
num_fewshot: 0
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["###"], do_sample: false, max_gen_toks: 8}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("echo")
    told = folder / "ready.json"
    # --strict: that it tells no log-probabilities is no fault of its model.
    flags = ["--model", "demo", "--engine", "echo", "--shout", "--port", "0", "--no-ui", "--strict"]
    flags += ["--ready-file", str(told)]
    environment = {**ENVIRONMENT, "QSERVE_STATE_DIR": str(folder)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*COMMAND, "up", *flags], stdout=log, stderr=log, env=environment)
        try:
            for _ in range(600):
                if told.exists() and told.read_text():
                    break
                try:
                    process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue
                raise AssertionError((folder / "log").read_text())
            yield json.loads(told.read_text())["url"].removesuffix("/v1")
        finally:
            process.terminate()
            process.wait(60)


def ask(url: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "is anybody there"}]
    return httpx.post(f"{url}/v1/chat/completions", json={"model": "demo", "messages": messages, **fields}, timeout=30)


def test_it_answers(url: str) -> None:
    answer = ask(url).json()
    assert answer["choices"][0]["message"]["content"] == "IS ANYBODY THERE"
    assert answer["usage"]["completion_tokens"] == 3


def test_it_streams_and_its_requests_are_checked(url: str) -> None:
    events = [line for line in ask(url, stream=True).text.splitlines() if line.startswith("data: ")]
    assert len(events) == 4
    assert ask(url, max_tokens=0).status_code == 400


def test_it_has_a_wire_format_of_its_own(url: str) -> None:
    """Requests are read, rewritten and sent to its own path, its errors translated, its private routes closed."""
    assert ask(url).json()["id"] == "chatcmpl-echo"
    refused = ask(url, max_tokens=0).json()["error"]
    assert (refused["message"], refused["param"]) == ("echo refuses this: no words are asked for", "max_tokens")
    assert "'shout' is not a field" in ask(url, shout=True).json()["error"]["message"]
    closed = httpx.post(f"{url}/shutdown", timeout=30)
    assert (closed.status_code, closed.json()["error"]["code"]) == (404, "route_closed")
    document = httpx.get(f"{url}/openapi.json", timeout=30).json()["paths"]
    body = document["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "messages" in body["properties"] and "/v1/responses" not in document


def test_its_large_bodies_are_read_in_a_process_of_their_own(url: str) -> None:
    """Which has to find the wire format of the other package, too."""
    answer = ask(url, messages=[{"role": "user", "content": "word " * (1 << 15)}], max_tokens=2).json()
    assert (answer["id"], answer["choices"][0]["message"]["content"]) == ("chatcmpl-echo", "WORD WORD")


def test_it_is_measured_beside_its_plan(url: str) -> None:
    told = httpx.get(f"{url}/v1/qserve/memory", timeout=30).json()
    (entry,) = [one for one in told["data"] if one["worker"] == "chat"]
    assert entry["planned"]["engine"] == "echo"
    assert entry["memory"]["resident_bytes"] > 0


def test_it_is_benched(url: str) -> None:
    flags = ["bench", "--url", url, "--concurrency", "2", "--num-prompts", "8", "--input-len", "8", "--output-len", "4"]
    command = [*COMMAND, *flags, "--num-warmups", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_evaluated(url: str, tmp_path: Path) -> None:
    """By lm-eval, through the library: an answer in capitals is right where the task wants capitals."""
    items = [{"question": f"say word{index}", "answer": f"SAY WORD{index}"} for index in range(5)]
    items.append({"question": "say nothing", "answer": "silence"})
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, items)))
    (tmp_path / "shouts.yaml").write_text(TASK.format(file=tmp_path / "items.jsonl"))
    result = qserve.evaluate(
        url=url, tasks=[str(tmp_path / "shouts.yaml")], chat=True, limit=6, state_dir=str(tmp_path / "state")
    )
    (score,) = result.scores()
    assert score.value == pytest.approx(5 / 6)
    assert len(result.samples("shouts")) == 6
