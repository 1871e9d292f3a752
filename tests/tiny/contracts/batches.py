"""A batch through `qserve up` and the unmodified openai client: the same over every engine.

A folder of tests with a fixture `client`, of a service of the demo, takes it by an import.
"""

from __future__ import annotations

import json
import time

import openai

__all__ = ["test_a_batch_of_sums"]

SUMS = {f"{a}+{b}": str(a + b) for a, b in ((12, 30), (20, 21), (33, 44), (17, 25))}
LIMIT_S = 120  # keeps a broken promise from hanging the suite


def test_a_batch_of_sums(client: openai.OpenAI) -> None:
    lines = [
        {
            "custom_id": asked,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "demo",
                "temperature": 0,
                "max_tokens": 16,
                "messages": [{"role": "user", "content": f"What is {asked}?"}],
            },
        }
        for asked in SUMS
    ]
    lines[0]["body"]["temperature"] = "hot"  # type: ignore[index]
    file = client.files.create(file=("sums.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    deadline = time.monotonic() + LIMIT_S
    while batch.status in ("validating", "in_progress", "finalizing") and time.monotonic() < deadline:
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    answers = [json.loads(line) for line in client.files.content(str(batch.output_file_id)).text.splitlines()]
    said = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"] for one in answers}
    assert said == {asked: total for asked, total in SUMS.items() if asked != "12+30"}
    (refused,) = (json.loads(line) for line in client.files.content(str(batch.error_file_id)).text.splitlines())
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("12+30", 400)
