"""One candidate, counted: the workload that it can carry, as a `Plan` that fits or says what is missing."""

from __future__ import annotations

from qserve.planner.engines.transformers.fit import settle_transformers
from qserve.planner.engines.vllm.fit import settle_vllm
from qserve.planner.plan import Plan
from qserve.planner.setup import Setup

__all__ = ["ROOM_TOKENS", "settle"]

# Tokens of KV cache that a plan should leave, best first: a service worth starting holds four conversations of 4096;
# below the last a chat is no chat.
ROOM_TOKENS = (16384, 8192, 4096, 2048)


def settle(setup: Setup, room_tokens: int) -> Plan:
    """The best workload of a candidate that leaves `room_tokens` of KV cache; `fits` is False where none does.

    What the request fixes is not touched. A length that the request fixes replaces `room_tokens`.
    """
    return settle_vllm(setup, room_tokens) if setup.engine == "vllm" else settle_transformers(setup, room_tokens)
