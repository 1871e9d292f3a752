"""What each sampling field does, seen from a client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from transformers import AutoTokenizer

PROMPT = "<|im_start|>user\nReverse the word: apple<|im_end|>\n<|im_start|>assistant\n"


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, **{"max_tokens": 24, **fields})


def text(client: openai.OpenAI, **fields: Any) -> str:
    extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
    return complete(client, extra_body=extra, **fields).choices[0].text


def test_absent_temperature_is_the_checkpoints_own(client: openai.OpenAI) -> None:
    """The demo's generation_config.json says do_sample false: greedy."""
    assert text(client) == text(client, temperature=0)


def test_seed_repeats_and_other_seeds_differ(client: openai.OpenAI) -> None:
    drawn = [text(client, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_without_a_seed_answers_differ(client: openai.OpenAI) -> None:
    assert text(client, temperature=2.0) != text(client, temperature=2.0)


def test_seed_repeats_whatever_else_runs(client: openai.OpenAI) -> None:
    alone = [text(client, temperature=1.0, seed=seed) for seed in range(4)]
    with ThreadPoolExecutor(16) as pool:
        noise = [pool.submit(text, client, temperature=1.0, max_tokens=60) for _ in range(12)]
        crowded = list(pool.map(lambda seed: text(client, temperature=1.0, seed=seed), range(4)))
        for one in noise:
            one.result()
    assert crowded == alone


def test_seed_gives_a_batch_of_prompts_what_it_gives_each_alone(client: openai.OpenAI) -> None:
    prompts = [PROMPT, PROMPT.replace("apple", "house")]
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 5}
    batch = [choice.text for choice in complete(client, prompts, **fields).choices]
    assert batch == [complete(client, prompt, **fields).choices[0].text for prompt in prompts]


def test_seed_draws_the_token_after_an_echoed_prompt_alike_in_a_batch(client: openai.OpenAI) -> None:
    """Scored prompts draw their one token on another path than generated ones."""
    fields: dict[str, Any] = {"temperature": 2.0, "seed": 5, "max_tokens": 1, "echo": True, "logprobs": 0}
    batch = [choice.text for choice in complete(client, [PROMPT] * 4, **fields).choices]
    alone = complete(client, **fields).choices[0].text
    assert batch == [alone] * 4


@pytest.mark.parametrize(
    "fields",
    [{"top_p": 1e-6}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1.0}}],
    ids=["top_p", "top_k", "min_p"],
)
def test_truncation_to_one_token_is_greedy(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    assert text(client, temperature=2.0, **fields) == text(client, temperature=0)


def test_temperature_flattens(client: openai.OpenAI) -> None:
    """At a temperature near zero sampling is greedy; at two it is not."""
    greedy = text(client, temperature=0)
    assert text(client, temperature=0.01, seed=1) == greedy
    assert text(client, temperature=2.0, seed=1) != greedy


def test_top_k_keeps_that_many(client: openai.OpenAI) -> None:
    """With the same first step each time, 40 seeds draw no third token."""
    first = {text(client, temperature=2.0, seed=seed, max_tokens=1, extra_body={"top_k": 2}) for seed in range(40)}
    likeliest = complete(client, max_tokens=1, temperature=0, logprobs=2).choices[0].logprobs.top_logprobs[0]
    assert first <= set(likeliest)
    assert len(first) <= 2


@pytest.mark.parametrize(
    "fields",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"extra_body": {"repetition_penalty": 10.0}}],
    ids=["presence", "frequency", "repetition"],
)
def test_penalties_reach_the_sampler(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """Their arithmetic is tested at the sampler; here, that the same draws come out differently."""
    same = {"temperature": 1.5, "seed": 11, "max_tokens": 60}
    assert text(client, **same) == text(client, **same)
    assert text(client, **same, **fields) != text(client, **same)


def test_frequency_penalty_grows_with_the_count(client: openai.OpenAI) -> None:
    bias = {str(_ids()["x"]): 60.0}
    assert text(client, temperature=0, max_tokens=70, logit_bias=bias) == "x" * 70
    tired = text(client, temperature=0, max_tokens=70, logit_bias=bias, frequency_penalty=2.0)
    assert tired.startswith("x" * 10)
    assert tired != "x" * 70


def test_logit_bias_forces_and_forbids(client: openai.OpenAI) -> None:
    ids = _ids()
    assert text(client, temperature=0, max_tokens=4, logit_bias={str(ids["x"]): 100}) == "xxxx"
    greedy = complete(client, temperature=0, max_tokens=1, logprobs=1).choices[0]
    first = ids[greedy.logprobs.tokens[0]]
    assert complete(client, temperature=0, max_tokens=1, logit_bias={str(first): -100}).choices[0].text != greedy.text


def test_logit_bias_outside_the_vocabulary_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"logit_bias.*1280.*1279"):
        text(client, logit_bias={"1280": 1})


@pytest.mark.parametrize("field", ["temperature", "top_p", "presence_penalty", "frequency_penalty"])
def test_what_is_no_number_is_refused(service: Any, field: str) -> None:
    import httpx

    body = f'{{"model": "demo", "prompt": "a", "{field}": NaN}}'
    answer = httpx.post(f"{service.url}/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert field in answer.text


def _ids() -> dict[str, int]:
    from qserve.demo import chat_model_path

    tokenizer = AutoTokenizer.from_pretrained(chat_model_path())
    return {tokenizer.decode([token_id]): token_id for token_id in range(len(tokenizer))}
