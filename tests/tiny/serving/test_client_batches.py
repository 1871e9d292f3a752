"""A batch through `qserve up`, by the unmodified openai client."""

from __future__ import annotations

import json
import time

import openai

from tests.tiny.serving.served import Service

SUMS = {f"{a}+{b}": str(a + b) for a, b in ((12, 30), (20, 21), (33, 44), (50, 17))}


def test_a_batch_of_sums(client: openai.OpenAI, service: Service) -> None:
    lines = [
        {"custom_id": asked, "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": f"What is {asked}?"}]}}
        for asked in SUMS
    ]  # fmt: skip
    file = client.files.create(file=("sums.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline = time.monotonic() + 60
    while batch.status in ("validating", "in_progress", "finalizing") and time.monotonic() < deadline:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    answers = [json.loads(line) for line in client.files.content(str(batch.output_file_id)).text.splitlines()]
    said = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in answers}
    assert said == SUMS
    assert (service.state / "qserve" / "files" / "files.sqlite3").exists(), "below the state folder"
