"""The facts of a worker go to other processes whole: no list of their names stands beside their definition."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from qserve.wire.engine_fields import EngineFields, fields_of
from qserve.worker.base import TcpAddress, UnixAddress, WorkerFacts

DOCUMENT = {
    "paths": {
        "/v1/completions": {
            "post": {
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"type": "object", "properties": {"prompt": {"type": "string"}}}}
                    }
                }
            }
        }
    }
}
# A value of each type, other than any default.
VALUES: Mapping[Any, Any] = {
    str: "another",
    int: 4711,
    bool: True,
    int | None: 4711,
    tuple[str, ...]: ("one", "two"),
    UnixAddress | TcpAddress: TcpAddress("10.0.0.1", 20000),
    EngineFields | None: fields_of(DOCUMENT),
    Mapping[str, Any] | None: {"weights_bytes": 1, "devices": [{"name": "a card"}]},
    Path | None: Path("/models/m"),
}
TYPES = get_type_hints(WorkerFacts)


def over(facts: WorkerFacts) -> WorkerFacts:
    return WorkerFacts.from_json(json.loads(json.dumps(facts.to_json())))


def test_every_fact_comes_over_whatever_its_type() -> None:
    told = {one.name: VALUES[TYPES[one.name]] for one in fields(WorkerFacts)}
    for one in fields(WorkerFacts):
        assert one.default is MISSING or told[one.name] != one.default, f"{one.name} would be right by its default"
    facts = WorkerFacts(**told)
    there = over(facts)
    assert there == facts
    assert {name: type(getattr(there, name)) for name in told} == {name: type(value) for name, value in told.items()}


@pytest.mark.parametrize("address", [UnixAddress(Path("/run/w.sock")), TcpAddress("node", 1)])
def test_what_has_not_been_found_out_comes_over_as_such(address: UnixAddress | TcpAddress) -> None:
    facts = WorkerFacts("chat", ("m",), address, "key", 1, 1)
    assert over(facts) == facts and facts.role == "chat"


def test_another_document_of_an_engine_is_another_fact() -> None:
    one, other = (
        WorkerFacts("chat", ("m",), UnixAddress(Path("s")), "k", 1, 1, request_fields=fields_of(document))
        for document in (DOCUMENT, {"paths": {}})
    )
    assert one != other and hash(one.request_fields) != hash(other.request_fields)


def test_a_key_is_not_shown() -> None:
    facts = WorkerFacts("chat", ("m",), UnixAddress(Path("s")), "secret-key", 1, 1)
    assert "secret-key" not in repr(facts)
