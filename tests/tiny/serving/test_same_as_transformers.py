"""Greedy answers through HTTP are those of transformers' own `generate`, whatever else runs at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.tiny.serving.plain_transformers import Reference, id_of_label
from tests.tiny.serving.served import Service

QUESTIONS = [
    "What is 12+30?",
    "What is 71-18?",
    "Reverse the word: apple",
    "Sort these numbers: 9 2 7 4",
    "Which is larger, 31 or 13?",
    "How many letters are in banana?",
    "What is qserve?",
    "Copy: red green blue",
]
MAX_TOKENS = 40


def prompt_ids(plain: Reference, question: str) -> list[int]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return plain.tokenizer.encode(text)


def answer_ids(client: openai.OpenAI, prompt: list[int], max_tokens: int) -> Any:
    return client.completions.create(model="demo", prompt=prompt, temperature=0, max_tokens=max_tokens).choices[0].text


@pytest.fixture(scope="module")
def expected(plain: Reference) -> dict[str, str]:
    return {question: plain.greedy_text(prompt_ids(plain, question), MAX_TOKENS) for question in QUESTIONS}


@pytest.mark.parametrize("question", QUESTIONS)
def test_alone(client: openai.OpenAI, plain: Reference, expected: dict[str, str], question: str) -> None:
    assert answer_ids(client, prompt_ids(plain, question), MAX_TOKENS) == expected[question]


def test_token_for_token(client: openai.OpenAI, plain: Reference) -> None:
    """Past the end of the answer too, where a small model wanders."""
    prompt = prompt_ids(plain, QUESTIONS[0])
    choice = client.completions.create(
        model="demo", prompt=prompt, temperature=0, max_tokens=100, logprobs=0, extra_body={"ignore_eos": True}
    ).choices[0]
    new = [id_of_label(plain.tokenizer, label) for label in choice.logprobs.tokens]
    rows = plain.logprobs([*prompt, *new])[len(prompt) - 1 : -1]
    assert rows.argmax(-1).tolist() == new
    assert rows.max(-1).values.tolist() == pytest.approx(choice.logprobs.token_logprobs, abs=1e-4)
    assert plain.tokenizer.decode(new, skip_special_tokens=True) == choice.text


def test_sixteen_mixed_requests_at_once(
    client: openai.OpenAI, service: Service, plain: Reference, expected: dict[str, str]
) -> None:
    """Prompts of 10 to 600 tokens, chunked and shared prefixes, greedy beside sampled, streams, scored prompts."""
    filler = plain.tokenizer.encode("one two three four five six seven eight nine ten ") * 30
    long = {n: [*filler[:n], *prompt_ids(plain, QUESTIONS[n % 8])] for n in (100, 250, 400, 599)}
    long_expected = {n: plain.greedy_text(ids, 20) for n, ids in long.items()}

    def noise(seed: int) -> None:
        client.completions.create(model="demo", prompt=filler[:80], max_tokens=50, temperature=1.5, seed=seed)

    def scored(_: int) -> None:
        client.completions.create(model="demo", prompt=filler[:300], max_tokens=0, echo=True, logprobs=5)

    with ThreadPoolExecutor(32) as pool:
        background = [pool.submit(noise, seed) for seed in range(4)] + [pool.submit(scored, i) for i in range(3)]
        short = {q: pool.submit(answer_ids, client, prompt_ids(plain, q), MAX_TOKENS) for q in QUESTIONS}
        longer = {n: pool.submit(answer_ids, client, ids, 20) for n, ids in long.items()}
        assert {q: one.result() for q, one in short.items()} == expected
        assert {n: one.result() for n, one in longer.items()} == long_expected
        for one in background:
            one.result()
    assert service.num_running() == 0


def test_64_streams_at_once_answer_as_alone(client: openai.OpenAI, expected: dict[str, str]) -> None:
    def stream(question: str) -> str:
        chunks = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": question}], max_tokens=MAX_TOKENS, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(stream, QUESTIONS * 8)) == list(expected.values()) * 8
