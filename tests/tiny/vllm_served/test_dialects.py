"""OpenAI's Responses and Anthropic's Messages on vLLM: what holds on qserve's own engine holds here."""

from __future__ import annotations

from tests.tiny.contracts.dialects import *  # noqa: F403
