"""What does not fit the context is said in the words by which clients know it, on every route and in streams."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:  # its types take a second, in every process that collects these tests
    import anthropic

__all__ = ["test_a_prompt_that_does_not_fit_is_known_by_its_words", "test_anthropics_clients_know_it_by_theirs"]


def _asked(client: openai.OpenAI, content: str, **fields: Any) -> list[Callable[[], Any]]:
    turns: Any = [{"role": "user", "content": content}]
    return [
        lambda: client.chat.completions.create(model="demo", messages=turns, **fields),
        lambda: client.completions.create(model="demo", prompt=content, **fields),
        lambda: client.responses.create(model="demo", input=turns, **fields),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_known_by_its_words(client: openai.OpenAI, stream: bool) -> None:
    limit = client.models.retrieve("demo").max_model_len  # type: ignore[attr-defined]
    ids = [lambda: client.completions.create(model="demo", prompt=[5] * (2 * limit), stream=stream)]
    for content in ("7 " * (2 * limit), "7 " * (100 * limit)):  # counted, and too many characters for that
        for ask in _asked(client, content, stream=stream) + ids:
            with pytest.raises(openai.BadRequestError) as caught:
                ask()
            assert caught.value.code == "context_length_exceeded"
            said = caught.value.body["message"]  # type: ignore[index]
            found = re.match(r"This model's maximum context length is (\d+) tokens\. However, \D*(\d+) tokens", said)
            assert found is not None and int(found[1]) == limit < int(found[2]), said
    with pytest.raises(openai.BadRequestError, match=f"is {limit} tokens.* {2 * limit} tokens"):
        ids[0]()
    with pytest.raises(openai.BadRequestError, match=rf"is {limit} tokens\. However, .*{limit + 1} tokens"):
        client.completions.create(model="demo", prompt=[5] * limit, stream=stream)


def test_anthropics_clients_know_it_by_theirs(messages: anthropic.Anthropic, client: openai.OpenAI) -> None:
    import anthropic

    limit = client.models.retrieve("demo").max_model_len  # type: ignore[attr-defined]
    for content, max_tokens in (("7 " * (2 * limit), 10), ("7 " * (100 * limit), 10), ("7", 3 * limit)):
        turns: Any = [{"role": "user", "content": content}]
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError) as caught:
                messages.messages.create(model="demo", max_tokens=max_tokens, messages=turns, stream=stream)
            body: Any = caught.value.body
            assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
            found = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum", body["error"]["message"])
            assert found is not None and int(found[1]) > int(found[2]) == limit, body
