"""Whatever number a schema holds, on whatever route: an answer or a sentence, soon, and within the worker's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qserve.units import MIB
from tests.tiny.contracts.structures import HUGE, REPEATED, WAYS, answered, cases, own_bytes, repetitions
from tests.tiny.serving.served import Service

_MOST_BYTES = 300 * MIB


@pytest.fixture
def bounded(service: Service) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Sends a body; the worker's memory is held against what it was before the test."""
    worker = service.worker()
    assert worker is not None
    before = own_bytes(worker)
    yield lambda path, body: answered(lambda path, body: service.post(path, **body), path, body)
    assert own_bytes(worker) - before < _MOST_BYTES


@pytest.mark.parametrize("way", WAYS)
def test_every_numeric_keyword(way: str, bounded: Callable[[str, dict[str, Any]], None]) -> None:
    for path, body in cases(way):
        bounded(path, body)


@pytest.mark.parametrize("number", REPEATED)
def test_every_repetition(number: int, bounded: Callable[[str, dict[str, Any]], None]) -> None:
    for path, body in repetitions(number):
        bounded(path, body)


def test_the_bound_is_said(service: Service) -> None:
    for path, body in WAYS.values():
        answer = service.post(path, **body(HUGE))
        assert answer.status_code == 400
        assert "'maxItems' in the structure is 1,000,000,000; it can be at most 10,000" in answer.text
