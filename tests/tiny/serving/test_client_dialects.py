"""OpenAI's Responses and Anthropic's Messages on qserve's own engine, by the SDKs as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from tests.tiny.contracts.dialects import *  # noqa: F403
from tests.tiny.contracts.forms import *  # noqa: F403
from tests.tiny.contracts.overflow import *  # noqa: F403
from tests.tiny.serving.served import Service

if TYPE_CHECKING:  # its types take a second, in every process that collects these tests
    import anthropic


@pytest.fixture(scope="module")
def messages(service: Service) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0, timeout=120) as one:
        yield one


def test_thoughts_are_items_and_blocks(client: openai.OpenAI, messages: anthropic.Anthropic) -> None:
    asked = "What is 12+30+11?"
    answer = client.responses.create(model="demo", input=asked, temperature=0)
    thought, said = answer.output
    assert (thought.type, thought.content[0].text, answer.output_text) == ("reasoning", "12+30=42\n42+11=53", "53")
    assert answer.usage.output_tokens_details.reasoning_tokens > 10
    message = messages.messages.create(model="demo", max_tokens=100, messages=[{"role": "user", "content": asked}])
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking == "12+30=42\n42+11=53" and said.status == "completed"
    quick = messages.messages.create(
        model="demo", max_tokens=100, messages=[{"role": "user", "content": asked}], thinking={"type": "disabled"}
    )
    assert [block.type for block in quick.content] == ["text"]


def test_what_is_not_served_says_so(client: openai.OpenAI, messages: anthropic.Anthropic) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing is stored between requests"):
        client.responses.create(model="demo", input="x", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="no tool of type 'web_search'"):
        client.responses.create(model="demo", input="x", tools=[{"type": "web_search"}])
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_1")
    image = {"type": "image", "source": {"type": "url", "url": "http://x"}}
    import anthropic

    with pytest.raises(anthropic.BadRequestError, match="--engine vllm"):
        messages.messages.create(model="demo", max_tokens=5, messages=[{"role": "user", "content": [image]}])


def test_an_answer_that_is_begun_goes_on(messages: anthropic.Anthropic) -> None:
    turns = [{"role": "user", "content": "What is 12+30?"}, {"role": "assistant", "content": "4"}]
    answer = messages.messages.create(model="demo", max_tokens=5, messages=turns)
    assert answer.content[0].text == "2"


def test_log_probabilities_of_a_response(client: openai.OpenAI) -> None:
    """Of its text, where they are asked for; the same in a stream."""
    fields: Any = {
        "model": "demo",
        "input": "What is 17 + 25?",
        "temperature": 0,
        "max_output_tokens": 20,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        "extra_body": {"repetition_penalty": 1.01, "min_p": 0.01},
    }
    part = client.responses.create(**fields).output[-1].content[0]
    assert "".join(one.token for one in part.logprobs).startswith(part.text)
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)
    events = list(client.responses.create(**fields, stream=True))
    streamed = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.token for one in streamed] == [one.token for one in part.logprobs]
    assert not client.responses.create(**{**fields, "include": []}).output[-1].content[0].logprobs


def test_a_stream_ends_without_empty_log_probabilities(client: openai.OpenAI) -> None:
    """As OpenAI's: clients read an object without tokens as tokens."""
    messages: Any = [{"role": "user", "content": "What is 17 + 25?"}]
    chunks = list(client.chat.completions.create(model="demo", messages=messages, logprobs=True, stream=True))
    given = [chunk.choices[0].logprobs for chunk in chunks]
    assert (
        given[-1] is None and any(given) and all(one is None or (one.content and one.refusal is None) for one in given)
    )
    whole = client.chat.completions.create(model="demo", messages=messages, logprobs=True).choices[0]
    raw = whole.model_dump()
    assert raw["message"]["refusal"] is None and raw["logprobs"]["refusal"] is None
    assert "refusal" in whole.message.model_fields_set and "refusal" in whole.logprobs.model_fields_set
    texts = list(client.completions.create(model="demo", prompt="17 + 25 =", logprobs=1, stream=True, max_tokens=50))
    assert all(chunk.choices[0].logprobs is None or chunk.choices[0].logprobs.tokens for chunk in texts)


def test_tools_are_counted_as_in_a_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    used = client.chat.completions.create(model="demo", messages=messages, tools=tools, max_tokens=1).usage
    url = str(client.base_url).replace("/v1/", "/tokenize")
    counted = httpx.post(url, json={"model": "demo", "messages": messages, "tools": tools}).json()
    assert used is not None and counted["count"] == used.prompt_tokens
    assert httpx.post(url, json={"model": "demo", "prompt": "x", "tools": tools}).status_code == 400
