"""Chat through the unmodified openai client, whole and streamed."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from transformers import AutoTokenizer

from tests.tiny.serving.served import Service, until

QUESTION = [{"role": "user", "content": "What is 12+30?"}]
LETTERS = [{"role": "user", "content": "Reverse the word: apple"}]


def ask(client: openai.OpenAI, messages: list[dict[str, str]] = QUESTION, **fields: Any) -> Any:
    return client.chat.completions.create(model="demo", messages=messages, **{"temperature": 0, **fields})  # type: ignore[arg-type]


def streamed(client: openai.OpenAI, messages: list[dict[str, str]] = QUESTION, **fields: Any) -> list[Any]:
    return list(ask(client, messages, stream=True, **fields))


def joined(chunks: list[Any], index: int = 0) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index)


def test_answer_has_openais_shape(client: openai.OpenAI) -> None:
    answer = ask(client)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "demo"
    choice = answer.choices[0]
    assert (choice.index, choice.message.role, choice.finish_reason, choice.logprobs) == (0, "assistant", "stop", None)
    assert choice.message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    whole, chunks = ask(client), streamed(client)
    assert joined(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "stop"
    assert not any(reasons[:-1])


def test_stream_comes_piece_by_piece(client: openai.OpenAI) -> None:
    chunks = streamed(client, max_tokens=30, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert sum(bool(choice.delta.content) for chunk in chunks for choice in chunk.choices) > 10


def test_usage_is_streamed_only_when_asked_for(client: openai.OpenAI) -> None:
    usage = ask(client).usage
    with_usage = streamed(client, stream_options={"include_usage": True})
    assert with_usage[-1].usage == usage
    assert with_usage[-1].choices == []
    assert all(chunk.usage is None for chunk in [*with_usage[:-1], *streamed(client)])


def test_usage_is_told_with_each_event_when_asked_for(client: openai.OpenAI) -> None:
    """GuideLLM always asks for it."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(client, stream_options=options, max_tokens=6, extra_body={"ignore_eos": True})
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, 6)


def test_usage_counts_tokens(client: openai.OpenAI, service: Service) -> None:
    usage = ask(client, max_tokens=5, extra_body={"ignore_eos": True}).usage
    counted = service.post("/tokenize", messages=QUESTION).json()["count"]
    assert (usage.prompt_tokens, usage.completion_tokens) == (counted, 5)


def test_max_tokens_ends_with_length(client: openai.OpenAI) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, **{field: 1})
        assert answer.usage.completion_tokens == 1
        assert answer.choices[0].finish_reason == "length"


def test_ignore_eos_and_min_tokens(client: openai.OpenAI) -> None:
    plain = ask(client).usage.completion_tokens
    assert plain < 20
    ignoring = ask(client, max_tokens=40, extra_body={"ignore_eos": True})
    assert (ignoring.usage.completion_tokens, ignoring.choices[0].finish_reason) == (40, "length")
    at_least = ask(client, max_tokens=60, extra_body={"min_tokens": 20})
    assert at_least.usage.completion_tokens >= 20
    first = ask(client).choices[0].message.content[:1]
    for extra in ({"stop": first}, {"stop": [first, " "]}):
        cut = ask(client, max_tokens=60, extra_body={"min_tokens": 20, **extra})
        assert cut.usage.completion_tokens >= 20 and first in cut.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="'min_tokens' is 61") as refused:
        ask(client, max_tokens=60, extra_body={"min_tokens": 61})
    assert refused.value.param == "min_tokens"
    with pytest.raises(openai.BadRequestError, match="16 tokens at most"):
        client.completions.create(model="demo", prompt="x", extra_body={"min_tokens": 17})


def test_stop_token_ids(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True).choices[0]
    vocabulary = _vocabulary()
    second = vocabulary[whole.logprobs.content[1].token]
    cut = ask(client, extra_body={"stop_token_ids": [second]}).choices[0]
    assert cut.message.content == whole.logprobs.content[0].token
    assert cut.finish_reason == "stop"


def test_n_choices_of_greedy_are_equal_and_of_sampling_differ(client: openai.OpenAI) -> None:
    equal = ask(client, n=2)
    assert [choice.index for choice in equal.choices] == [0, 1]
    assert equal.choices[0].message.content == equal.choices[1].message.content
    # Past the end of its answer even a well-trained model is in doubt.
    sampled = ask(client, n=3, temperature=2.0, seed=7, max_tokens=30, extra_body={"ignore_eos": True})
    assert len({choice.message.content for choice in sampled.choices}) == 3


def test_n_choices_are_streamed_side_by_side(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 2, "temperature": 1.5, "seed": 3, "max_tokens": 15}
    whole, chunks = ask(client, **fields), streamed(client, **fields)
    for choice in whole.choices:
        assert joined(chunks, choice.index) == choice.message.content
    assert sum(bool(choice.finish_reason) for chunk in chunks for choice in chunk.choices) == 2


def test_chat_logprobs(client: openai.OpenAI) -> None:
    choice = ask(client, logprobs=True, top_logprobs=3).choices[0]
    tokens = choice.logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == choice.message.content
    for token in tokens:
        values = [top.logprob for top in token.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0]  # greedy took the likeliest
        assert token.token == token.top_logprobs[0].token
        assert token.logprob <= 0


def test_streamed_logprobs_are_the_whole_ones(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    chunks = streamed(client, logprobs=True, top_logprobs=2)
    tokens = [
        token for chunk in chunks for choice in chunk.choices if choice.logprobs for token in choice.logprobs.content
    ]
    assert [t.token for t in tokens] == [t.token for t in whole]
    # Prefixes that another request left in the cache change the shape of a step, and with it the last bits.
    assert [t.logprob for t in tokens] == pytest.approx([t.logprob for t in whole], abs=1e-4)


def test_system_prompt_and_turns_reach_the_model_through_its_template(client: openai.OpenAI, service: Service) -> None:
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "What is 2+2?"},
    ]
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    )
    tokens = service.post("/tokenize", messages=conversation).json()["tokens"]
    assert service.post("/detokenize", tokens=tokens).json()["prompt"] == text
    same = client.completions.create(model="demo", prompt=text, temperature=0, max_tokens=30)
    assert ask(client, conversation, max_tokens=30).choices[0].message.content == same.choices[0].text


def test_content_may_come_in_parts(client: openai.OpenAI) -> None:
    parts: Any = [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "12+30?"}]}
    ]
    assert ask(client, parts).choices[0].message.content == ask(client).choices[0].message.content


def test_continue_final_message(client: openai.OpenAI) -> None:
    whole = ask(client, logprobs=True).choices[0]
    first = whole.logprobs.content[0].token
    begun = [*QUESTION, {"role": "assistant", "content": first}]
    rest = ask(client, begun, extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert first + rest.choices[0].message.content == whole.message.content


def test_chat_template_kwargs(client: openai.OpenAI, service: Service) -> None:
    plain = service.post("/tokenize", messages=QUESTION).json()["tokens"]
    off = {"enable_thinking": False}
    quiet = service.post("/tokenize", messages=QUESTION, chat_template_kwargs=off).json()["tokens"]
    added = service.post("/detokenize", tokens=quiet[len(plain) :]).json()["prompt"]
    assert (quiet[: len(plain)], added) == (plain, "<think>\n\n</think>\n\n")
    assert ask(client, extra_body={"chat_template_kwargs": off}).usage.prompt_tokens == len(quiet)
    with pytest.raises(openai.BadRequestError, match="tokenize"):
        ask(client, extra_body={"chat_template_kwargs": {"tokenize": False}})


def test_abort_frees_the_engine(client: openai.OpenAI, service: Service) -> None:
    stream = ask(client, stream=True, max_tokens=1900, extra_body={"ignore_eos": True})
    for _ in range(5):
        next(stream)
    assert service.num_running() == 1
    stream.close()
    took_s = until(lambda: service.num_running() == 0, 3, "the sequence of an aborted stream still runs")
    print(f"freed {took_s * 1000:.0f} ms after the abort")


def test_abort_of_an_answer_that_is_not_streamed_frees_the_engine(client: openai.OpenAI, service: Service) -> None:
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.3), max_tokens=1900, extra_body={"ignore_eos": True}, n=4)
    until(lambda: service.num_running() == 0, 3, "the sequences of an aborted request still run")


def test_prompt_too_long_is_a_400_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt=[5] * 3000)
    assert caught.value.code == "context_length_exceeded"
    # The demo is served at its longest already: a flag that qserve would refuse is no advice.
    assert "--max-model-len" not in str(caught.value)
    assert all(number in str(caught.value) for number in ("2048", "3000"))
    with pytest.raises(openai.BadRequestError, match=r"2048.*2140.*2040.*100"):
        client.completions.create(model="demo", prompt=[5] * 2040, max_tokens=100)


@pytest.mark.parametrize(
    ("field", "value"),
    [("functions", [{"name": "f"}]), ("web_search_options", {}), ("bad_words", ["x"]), ("guided_decoding", {})],
)
def test_fields_that_are_not_served_are_refused_by_name(client: openai.OpenAI, field: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=field) as caught:
        ask(client, extra_body={field: value})
    assert caught.value.code == "unsupported_field"


def test_unknown_model_is_a_404_that_names_what_there_is(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'demo'"):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)  # type: ignore[arg-type]


def test_models_are_listed(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["demo"]
    assert client.models.retrieve("demo").model_dump()["max_model_len"] == 2048


def _vocabulary() -> dict[str, int]:
    from qserve.demo import chat_model_path

    tokenizer = AutoTokenizer.from_pretrained(chat_model_path())
    return {tokenizer.decode([token_id]): token_id for token_id in range(len(tokenizer))}
