"""Request bodies of each kind of load, encoded before their clock starts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qserve.wire.worker_headers import PROBE

__all__ = ["ENDPOINTS", "Endpoint", "Prompt", "message"]


@dataclass(frozen=True)
class Prompt:
    """What one request asks.

    Attributes:
        text: the prompt; of a reward request, what the answers answer.
        output_len: tokens to generate.
        prompt_tokens: as counted here; 0 where nobody counted.
        messages: a conversation in place of `text`.
        answers: texts to score.
    """

    text: str
    output_len: int
    prompt_tokens: int = 0
    messages: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[str] = ()


@dataclass(frozen=True)
class Endpoint:
    """A route and how it is asked.

    Attributes:
        name: as --endpoint says it.
        path: below the server's address.
        model: "" where the server has one and needs no name.
        streams: whether tokens come one by one.
        ignore_eos: answers have exactly `output_len` tokens; a field of vLLM's that others may not know.
        length_field: how the longest answer is called; OpenAI's newer models know another name.
        extra: further fields of the body; they win.
    """

    name: str
    path: str
    model: str
    streams: bool = True
    ignore_eos: bool = False
    length_field: str = "max_tokens"
    temperature: float | None = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def generates(self) -> bool:
        return self.name in ("chat", "completions")

    def body(self, prompt: Prompt) -> bytes:
        """The JSON of a request."""
        fields = self._generation(prompt) if self.generates else self._scoring(prompt)
        model = {"model": self.model} if self.model else {}
        return json.dumps({**model, **fields, **self.extra}, ensure_ascii=False).encode()

    def num_texts(self, prompt: Prompt) -> int:
        """Texts that a request scores."""
        return 1 if self.generates else max(1, len(prompt.answers))

    def _generation(self, prompt: Prompt) -> dict[str, Any]:
        fields: dict[str, Any] = {self.length_field: prompt.output_len, "stream": self.streams}
        if self.name == "chat":
            fields["messages"] = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
        else:
            fields["prompt"] = prompt.text
        if self.streams:
            fields["stream_options"] = {"include_usage": True}
        if self.temperature is not None:
            fields["temperature"] = self.temperature
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return fields

    def _scoring(self, prompt: Prompt) -> dict[str, Any]:
        """Several answers share their prompt: best of N."""
        if self.name == "classify":
            return {"input": [f"{prompt.text} {answer}" for answer in prompt.answers] or [prompt.text]}
        return {"prompt": list(prompt.messages) or prompt.text, "responses": list(prompt.answers)}


ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "reward": "/v1/reward",
    "classify": "/classify",
}


def message(netloc: str, path: str, api_key: str, body: bytes, *, is_probe: bool = False) -> bytes:
    """A whole HTTP/1.1 request; a qserve counts one that `is_probe` apart."""
    key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    key += f"{PROBE}: 1\r\n" if is_probe else ""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {netloc}\r\n{key}content-type: application/json\r\n"
        f"accept: */*\r\naccept-encoding: identity\r\nuser-agent: qserve-bench\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
