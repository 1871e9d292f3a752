"""What xgrammar does with numbers in schemas: held to the same as the transformers engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psutil
import pytest

from qserve.units import MIB
from tests.tiny.contracts.structures import REPEATED, WAYS, answered, cases, own_bytes, repetitions
from tests.tiny.serving.served import Service

_MOST_BYTES = 100 * MIB


@pytest.fixture
def bounded(service: Service, http: httpx.Client) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Sends a body; the memory of the service is held against what it was before the test."""
    processes = psutil.Process(service.process.pid)
    before = own_bytes(processes)
    yield lambda path, body: answered(lambda path, body: http.post(path, json={"model": "demo", **body}), path, body)
    assert own_bytes(processes) - before < _MOST_BYTES


@pytest.mark.parametrize("way", WAYS)
def test_every_numeric_keyword(way: str, bounded: Callable[[str, dict[str, Any]], None]) -> None:
    for path, body in cases(way):
        bounded(path, body)


@pytest.mark.parametrize("number", REPEATED)
def test_every_repetition(number: int, bounded: Callable[[str, dict[str, Any]], None]) -> None:
    for path, body in repetitions(number):
        bounded(path, body)
