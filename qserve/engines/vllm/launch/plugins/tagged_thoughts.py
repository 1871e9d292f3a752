"""Thoughts of models that think where they like; vLLM loads this file (--reasoning-parser-plugin).

Its parser for Qwen takes all for a thought until that ends, and the answers of such a model would vanish in it. Here a
thought is what an answer begins with between tags. Blank lines around it are dropped, as the own engine does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.reasoning import ReasoningParserManager, basic_parsers

__all__ = ["TaggedThoughts"]


@ReasoningParserManager.register_module("qserve_tagged")
class TaggedThoughts(basic_parsers.BaseThinkingReasoningParser):  # type: ignore[misc]  # vllm is not read by mypy
    """Of one answer; what a stream shows follows from the text so far."""

    start_token, end_token = "<think>", "</think>"
    _is_closed = False

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Thought and answer of a whole text, each None where there is none."""
        thought, answer = _split(model_output)
        return thought or None, answer or None

    def extract_reasoning_streaming(
        self, previous_text: str, current_text: str, delta_text: str, *token_ids: Any, **fields: Any
    ) -> Any:
        """What `delta_text` adds to either."""
        before, now = _split(previous_text), _split(current_text)
        thought, answer = (new[len(old) :] for old, new in zip(before, now, strict=True))
        if not thought and not answer:
            return None
        return basic_parsers.DeltaMessage(reasoning=thought or None, content=answer or None)

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Once the answer has begun, of which `input_ids` are all tokens: with more than blank lines."""
        if self._begins_without(input_ids):
            return True
        self._is_closed = self._is_closed or self.end_token_id in delta_ids
        if not self._is_closed:
            return False
        answer = list(input_ids)[list(input_ids).index(self.end_token_id) + 1 :]
        return bool(self.model_tokenizer.decode(answer).strip("\n"))

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """What of them comes after the thought."""
        if self.end_token_id in input_ids:
            return input_ids[input_ids.index(self.end_token_id) + 1 :]
        return input_ids if self._begins_without(input_ids) else []

    def _begins_without(self, ids: Sequence[int]) -> bool:
        return len(ids) > 0 and ids[0] != self.start_token_id


def _split(text: str) -> tuple[str, str]:
    """Thought and answer that may be shown of an answer that begins so: blank lines wait for what follows them."""
    start, end = TaggedThoughts.start_token, TaggedThoughts.end_token
    if not text.startswith(start):
        return "", text
    thought, ended, answer = text.removeprefix(start).partition(end)
    return thought.strip("\n"), answer.lstrip("\n") if ended else ""
