"""POST /v1/responses/input_tokens on vLLM, which has no such route: from the usage of an answer of one token.

So the count holds whatever is part of the prompt, an earlier stored response included, and the prompt is cached for the
request that follows. vLLM's own route that renders prompts is off, and reads no stored responses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pydantic_core import to_json

from qserve.engines.vllm.wire import requests
from qserve.engines.vllm.wire.reader import ByDocument
from qserve.wire.body_scan import read_object
from qserve.wire.engine_fields import EngineFields
from qserve.worker.base import WorkerFacts
from qserve.worker.wire import CheckedRequest

__all__ = ["RESPONSES", "CountsByAnswering", "counted"]

RESPONSES = "/v1/responses"
_BY_DOCUMENT = ByDocument(requests.one)
# Fields of the answer alone: they change nothing in the prompt.
_OF_ANSWERS = frozenset({"stream", "stream_options", "background", "max_output_tokens", "logit_bias", "top_logprobs"})


class _Answer(msgspec.Struct):
    """The part of a response that is read."""

    usage: dict[str, Any]


@dataclass(frozen=True)
class CountsByAnswering:
    """A body of /v1/responses, checked like one, as a request for one token."""

    def read(self, body: bytes, path: str, facts: WorkerFacts) -> CheckedRequest:
        checked = _BY_DOCUMENT.read(body, RESPONSES, facts)
        given = read_object(checked.body or body)
        asked = {name: value for name, value in given.items() if name not in _OF_ANSWERS and value is not None}
        asked.setdefault("input", [])  # OpenAI counts instructions alone, too
        asked |= {"max_output_tokens": 1, "store": False}
        return replace(checked, body=to_json(asked), max_tokens=1)

    def known_names(self, path: str, facts: WorkerFacts) -> frozenset[str] | None:
        return _BY_DOCUMENT.known_names(RESPONSES, facts)

    def schema_of(self, path: str, fields: EngineFields | None, schemas: dict[str, Any]) -> dict[str, Any]:
        return _BY_DOCUMENT.schema_of(RESPONSES, fields, schemas)


def counted(answer: bytes) -> bytes:
    """OpenAI's answer, made of vLLM's response."""
    usage = msgspec.json.decode(answer, type=_Answer).usage
    return json.dumps({"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}).encode()
