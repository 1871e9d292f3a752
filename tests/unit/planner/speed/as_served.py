"""Simulated answers as if a server had given them."""

from __future__ import annotations

from collections.abc import Iterable

from qserve.planner.speed.served import ServedRequest
from qserve.planner.speed.simulated import Finished

__all__ = ["served_of"]


def served_of(finished: Iterable[Finished]) -> list[ServedRequest]:
    """When each came, its lengths and its times."""
    return [
        ServedRequest(one.arrival_s, one.input_tokens, one.output_tokens, one.ttft_s, one.e2e_s) for one in finished
    ]
