"""What a server takes for a batch, as `qserve.wire.batches` has it, whose package a client need not install."""

from __future__ import annotations

import re

__all__ = ["ENDPOINTS", "WINDOW"]

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/reward",
    "/v1/score",
    "/v1/rerank",
)
WINDOW = re.compile(r"[1-9][0-9]{0,5}[smhd]")
"""The form of `completion_window`."""
