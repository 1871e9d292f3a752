"""Reads a body by vLLM's own OpenAPI document, and rewrites it where vLLM would read something else than is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from qserve.engines.vllm.wire import requests
from qserve.engines.vllm.wire.agents import as_vllm_reads
from qserve.engines.vllm.wire.forms import in_engine_words
from qserve.engines.vllm.wire.openapi import engine_schema
from qserve.engines.vllm.wire.schemas import with_enforceable_schemas
from qserve.engines.vllm.wire.thought_first import with_thought_first
from qserve.wire.body_scan import read_object
from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import CheckedRequest, check_size, max_tokens_of

__all__ = ["ByDocument"]


@dataclass(frozen=True)
class ByDocument:
    """A body that the OpenAPI document of the running server describes (`WorkerFacts.request_fields`)."""

    count: Callable[[Mapping[str, Any]], int] | None = None

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        fields = facts.request_fields
        if fields is None:
            raise ApiError(503, "the worker has not reported its routes yet", "worker_not_ready", retry_after_s=2)
        given = read_object(body)
        read = in_engine_words(path, as_vllm_reads(path, given), takes_one_system=facts.takes_one_system)
        value = requests.with_structured_outputs(path, read)
        requests.check_body(fields, path, value)
        check_size(value, facts, len(body))
        said = requests.without_no_tools(value)
        changed = with_enforceable_schemas(said, facts.schema_library) or said
        if facts.thinks_in_text and facts.schema_library == "xgrammar" and path == "/v1/chat/completions":
            changed = with_thought_first(changed) or changed
        return CheckedRequest(
            value.get("model"),
            self.count(value) if self.count is not None else 0,
            max_tokens_of(value),
            None if changed is given else to_json(changed),
            value.get("cache_salt"),
            "cache_salt" in (fields.names(path, "POST") or ()),
        )

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str] | None:
        fields = facts.request_fields
        return None if fields is None else requests.known_names(fields, path)

    def schema_of(self, path: str, fields: EngineFields | None, schemas: dict[str, Any]) -> dict[str, Any]:
        return {} if fields is None else engine_schema(fields.document, path, "vllm", schemas)
