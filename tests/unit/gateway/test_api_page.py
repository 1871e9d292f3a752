"""docs/api.md names every route, field, refused field, error code and metric, and none that are not there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import qserve.gateway
from qserve.engines.vllm.engine import ENGINE
from qserve.engines.vllm.wire import errors as vllm_errors
from qserve.engines.vllm.wire import requests
from qserve.engines.vllm.wire.closed import CLOSED
from qserve.gateway.openapi import DocumentedWorker, document
from qserve.gateway.routes import ROUTES, RelayedRoute
from qserve.gateway.telemetry.machine_memory import MachineMemory
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.wire import refused_fields, structured
from qserve.wire.engine_fields import fields_of
from qserve.worker.wires import BySchema

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SOURCES = Path(qserve.gateway.__file__).parent


def _literals(node):
    """The strings that an expression can be: a literal, or either side of a choice."""
    if isinstance(node, ast.IfExp):
        return _literals(node.body) | _literals(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) else set()


def _codes_in_the_source():
    """What stands as the third argument of an ApiError(…), or in the variable that does."""
    codes = set()
    for path in [
        *SOURCES.rglob("*.py"),
        *(SOURCES.parent / "wire").glob("*.py"),
        *(SOURCES.parent / "batches").glob("*.py"),
        *(SOURCES.parent / "engines").glob("*/wire/**/*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ApiError" and node.args:
                codes |= _literals(node.args[2])
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "code":
                codes |= _literals(node.value)
    return codes | set(vllm_errors._CODE_OF_STATUS.values())


def test_every_route_is_there_and_no_other():
    told = set(re.findall(r"^\| `((?:GET|POST|DELETE) /\S*)` \|", PAGE, re.MULTILINE))
    assert told == {f"{route.method} {route.path}" for route in ROUTES}


def _schemas():
    """The schemas of ours that bodies are checked against."""
    offers = [offered for route in ROUTES if isinstance(route, RelayedRoute) for offered in route.offers()]
    return [offered.reader.schema for offered in offers if isinstance(offered.reader, BySchema)]


@pytest.mark.parametrize("schema", _schemas())
def test_every_field_is_there(schema):
    told = set(re.findall(r"`(\w+)`", PAGE))
    assert set(schema.model_fields) <= told


def test_no_field_is_there_that_no_route_takes():
    fields = {name for schema in _schemas() for name in schema.model_fields}
    section = PAGE[PAGE.index("## Fields of models on the transformers engine") : PAGE.index("### Refused by name")]
    told = {
        name for cell in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert told == fields


def test_every_refused_field_is_there():
    section = PAGE[PAGE.index("### Refused by name") : PAGE.index("### Thinking, tools and structured output")]
    assert set(re.findall(r"`(\w+)`", section)) == {*refused_fields.REFUSED, *refused_fields.SERVED_BY_VLLM}


def test_every_rule_for_vllm_is_there():
    section = PAGE[PAGE.index("## Fields of models on vLLM") : PAGE.index("### LoRA adapters")]
    told = set(re.findall(r"`([\w.]+)`", section))
    anywhere = frozenset().union(*requests.ANYWHERE.values())
    assert {
        *requests.HARMLESS,
        *anywhere,
        *requests.REFUSED,
        *requests.UNREAD,
        *requests.NARROWED,
        *structured.GUIDED,
    } <= told


def test_every_closed_route_is_there_and_no_other():
    section = PAGE[PAGE.index("### Closed") : PAGE.index("## Fields of models on the transformers engine")]
    cells = re.findall(r"^\| (`/.*?) \|", section, re.MULTILINE)
    assert {path for cell in cells for path in re.findall(r"`(/[\w/]+)`", cell)} == set(CLOSED)
    assert not CLOSED.keys() & {route.path for route in ROUTES}


def test_every_error_code_is_there():
    codes = _codes_in_the_source()
    assert len(codes) > 15 and "invalid_grammar" in codes, "the gateway's, and those of an engine's wire format"
    section = PAGE[PAGE.index("## Errors") : PAGE.index("## What happens")]
    assert codes <= set(re.findall(r"`(\w+)`", section))


def test_every_metric_is_there_and_no_other():
    metrics = GatewayMetrics()
    metrics.watch_workers([])
    metrics.watch_machine(MachineMemory(total_bytes=1))
    names = set()
    for family in metrics.registry.collect():
        names.add(family.name + "_total" if family.type == "counter" else family.name)
    assert set(re.findall(r"`(qserve_gateway_\w+)`", PAGE)) == names


def _worker(*names):
    return DocumentedWorker("chat", "", names, None)


def test_the_openapi_document_is_closed_and_says_which_models_there_are():
    value = json.loads(document(True, (_worker("a", "org/b"),)))
    text = json.dumps(value)
    for name in re.findall(r'"\$ref": "#/components/schemas/([\w.]+)"', text):
        assert name in value["components"]["schemas"]
    assert value["components"]["schemas"]["ChatCompletionRequest"]["properties"]["model"]["enum"] == ["a", "org/b"]
    for path, item in value["paths"].items():
        for operation in item.values():
            assert ("security" in operation) == (path != "/health")
    assert "security" not in json.dumps(json.loads(document(False, (_worker("a"),)))["paths"])
    assert "/v1/systemone" not in value["paths"], "nobody serves it"


def test_the_document_has_the_routes_that_vllm_reports():
    schema = {"type": "object", "properties": {"model": {}, "input": {}}}
    operation = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
    reported = {"/v1/embeddings": {"post": operation}}
    worker = DocumentedWorker("chat", ENGINE.wire, ("m",), fields_of({"paths": reported}))
    relayed = {route.path for route in ROUTES if isinstance(route, RelayedRoute)}
    assert json.loads(document(False, (worker,)))["paths"].keys() & relayed == reported.keys()
