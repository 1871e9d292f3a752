"""Coding agents on qserve's own engine, by what they send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import openai
import pytest

from tests.tiny.contracts.agents.replayed import *  # noqa: F403
from tests.tiny.contracts.agents.replayed import _body, _responses
from tests.tiny.serving.served import Service

if TYPE_CHECKING:  # its types take a second, in every process that collects these tests
    import anthropic


@pytest.fixture(scope="module")
def messages(service: Service) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0, timeout=120) as one:
        yield one


def test_a_patch_follows_its_grammar(client: openai.OpenAI) -> None:
    """vLLM can't hold a call to it; here the first words are the grammar's, whatever the model would say."""
    for choice in ({"type": "custom", "name": "apply_patch"}, "required"):
        body = _body("codex_apply_patch", 0, reasoning={"effort": "none"}, temperature=1, seed=5)
        tools: Any = [tool for tool in body["tools"] if tool["type"] == "custom"]
        events = _responses(client, {**body, "tools": tools, "tool_choice": choice})
        call = events[-1].response.output[-1]
        first, second, *_ = call.input.split("\n")
        assert first == "*** Begin Patch" and second.startswith("*** "), call.input
