"""Real vLLM over a tokenizer with tokens that the embedding has no rows for: each is a 400, and the engine lives."""

from __future__ import annotations

from typing import Any

from tests.tiny.rowless import PLAIN, SPECIAL
from tests.tiny.serving.served import Service

ROWS = 1280


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "chat": ("/v1/chat/completions", {"messages": user(f"a {PLAIN}")}, ROWS),
    "special": ("/v1/chat/completions", {"messages": user(SPECIAL), "stream": True}, ROWS + 1),
    "text": ("/v1/completions", {"prompt": f"a {PLAIN}"}, ROWS),
    "ids": ("/v1/completions", {"prompt": [1, ROWS + 1]}, ROWS + 1),
    "scored": ("/v1/completions", {"prompt": PLAIN, "echo": True, "logprobs": 1, "max_tokens": 0}, ROWS),
    "messages": ("/v1/messages", {"messages": user(PLAIN), "max_tokens": 4}, ROWS),
    "responses": ("/v1/responses", {"input": PLAIN}, ROWS),
    "biased": ("/v1/completions", {"prompt": "a", "logit_bias": {str(ROWS): 1}}, ROWS),
    "stopped": ("/v1/completions", {"prompt": "a", "stop_token_ids": [ROWS + 1], "min_tokens": 2}, ROWS + 1),
    "allowed": ("/v1/completions", {"prompt": "a", "allowed_token_ids": [ROWS + 1]}, -1),
    "bad words": ("/v1/completions", {"prompt": "a", "bad_words": [PLAIN]}, ROWS),
}


def test_each_way_in_refuses_it_and_the_engine_lives(service: Service) -> None:
    assert "2 tokens without a row" in " ".join(service.output.split())
    wrong: dict[str, str] = {}
    for name, (path, body, token_id) in CASES.items():
        reply = service.post(path, **{"max_tokens": 4, **body} if path != "/v1/responses" else body)
        if reply.status_code != 400 or (token_id >= 0 and str(token_id) not in reply.text):
            wrong[name] = f"{reply.status_code} {reply.text[:300]}"
    choice = {"structured_outputs": {"choice": [PLAIN, "b"]}}
    for body in ({}, choice, {"min_tokens": 3}, {"prompt": [1, ROWS - 1]}):
        reply = service.post("/v1/completions", **{"prompt": "1+1", "max_tokens": 40, **body})
        if reply.status_code != 200:
            wrong[str(body)] = f"{reply.status_code} {reply.text[:300]}"
    assert not wrong
    assert service.is_ready()
