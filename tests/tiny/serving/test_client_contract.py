"""Tools and structured output on qserve's own engine: what holds on vLLM holds here."""

from __future__ import annotations

from tests.tiny.contracts.chat import *  # noqa: F403
