"""A body is checked by its schema once in the worker, in the process that reads it, and once in the gateway."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny.serving.served import Service

# A plugin of pydantic's: it notes each run of a schema, and by which program, in every process of a service.
PLUGIN = """
import os, sys

class Noting:
    def __init__(self, name):
        self.name = name

    def on_enter(self, *of, **options):
        programs = [word for word in sys.orig_argv if word.startswith("qserve.")]
        with open(os.environ["SCHEMA_RUNS"], "a") as file:
            print(programs[-1] if programs else "gateway", self.name, file=file)

class Plugin:
    def new_schema_validator(self, schema, schema_type, path, kind, config, settings):
        if kind != "BaseModel" or not schema_type.__module__.startswith("qserve.wire."):
            return None, None, None
        noting = Noting(schema_type.__name__)
        return noting, noting, None

plugin = Plugin()
"""
TURN = {"role": "user", "content": "1+1="}
CHAT = {"model": "demo", "messages": [TURN], "max_tokens": 2}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = {
    "a chat": ("/v1/chat/completions", CHAT, "ChatCompletionRequest"),
    "a large chat": ("/v1/chat/completions", {**CHAT, "user": "u" * 100_000}, "ChatCompletionRequest"),
    "a stream with tools": ("/v1/chat/completions", {**CHAT, "stream": True, "tools": [TOOL]}, "ChatCompletionRequest"),
    "a completion": ("/v1/completions", {"model": "demo", "prompt": "1+1=", "max_tokens": 2}, "CompletionRequest"),
    "a message": ("/v1/messages", CHAT, "MessagesRequest"),
    "a response": ("/v1/responses", {"model": "demo", "input": "1+1=", "max_output_tokens": 16}, "ResponsesRequest"),
    "tokens of a message": ("/v1/messages/count_tokens", {"model": "demo", "messages": [TURN]}, "CountTokensRequest"),
    "tokens of a response": ("/v1/responses/input_tokens", {"model": "demo", "input": "1+1="}, "InputTokensRequest"),
    "tokens": ("/tokenize", {"model": "demo", "prompt": "1+1="}, "TokenizeRequest"),
    "text": ("/detokenize", {"model": "demo", "tokens": [5]}, "DetokenizeRequest"),
}
TRANSLATED = {"MessagesRequest", "ResponsesRequest", "CountTokensRequest", "InputTokensRequest"}
READER = "qserve.engines.transformers.worker.prompts.process"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a service whose processes note the schemas that they run."""
    plugin = tmp_path / "plugin"
    about = plugin / "noting-1.0.dist-info"
    about.mkdir(parents=True)
    (plugin / "noting_schemas.py").write_text(PLUGIN)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: noting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pydantic]\nnoting = noting_schemas:plugin\n")
    path = os.pathsep.join(filter(None, (str(plugin), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "SCHEMA_RUNS": str(tmp_path / "runs")}


def test_the_schema_of_a_body_is_run_once_in_the_worker(
    start: Callable[..., Service], environment: dict[str, str]
) -> None:
    service, notes = start(**environment).until_ready(), Path(environment["SCHEMA_RUNS"])

    def runs(path: str, body: dict[str, Any]) -> Counter[tuple[str, str]]:
        notes.write_text("")
        httpx.post(service.url + path, json=body, timeout=60).raise_for_status()
        words = (line.split() for line in notes.read_text().splitlines())
        return Counter((program, name) for program, name in words if name.endswith("Request"))

    runs(*CALLS["a large chat"][:2])  # the process for large bodies starts with the first of them
    for what, (path, body, schema) in CALLS.items():
        expected = {("gateway", schema): 1, (READER, schema): 1}
        if schema in TRANSLATED:  # each is held to its own schema, and to that of the chat which it becomes
            expected[READER, "ChatCompletionRequest"] = 1
        assert runs(path, body) == expected, what
