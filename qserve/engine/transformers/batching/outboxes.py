"""From a thread that generates to those who wait on the event loop."""

from __future__ import annotations

import asyncio

from qserve.engine.transformers.batching.batcher import Deliveries

__all__ = ["Outboxes"]


class Outboxes:
    """Hands over what a step has yielded: one wake-up of the loop for all of its sequences."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def deliver(self, deliveries: Deliveries) -> None:
        """Thread-safe. What is handed over is not drawn again."""
        self._loop.call_soon_threadsafe(_fill, deliveries)
        for sequence, _ in deliveries:
            sequence.undelivered = None


def _fill(deliveries: Deliveries) -> None:
    for sequence, item in deliveries:
        sequence.outbox.put_nowait(item)
