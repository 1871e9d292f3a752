"""OpenAI's Responses and Anthropic's Messages on qserve's own engine, by the SDKs as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import openai
import pytest

from tests.tiny.contracts.dialects import *  # noqa: F403
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
