"""Coding agents on vLLM, by what they send: what holds on qserve's own engine holds here."""

from __future__ import annotations

from tests.tiny.contracts.agents.replayed import *  # noqa: F403
