"""Texts with no more of their prompts and answers than a request wants read: `max_tokens_per_doc` of rankers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from qserve.reward.protocols.job import ScoreJob, Text

__all__ = ["shortened"]


def shortened(texts: Sequence[Text], job: ScoreJob, beginning: Callable[[str, int], str]) -> list[Text]:
    """`beginning`: of a text so many tokens. Only messages are cut; what else there is has no parts."""
    return [_shortened(text, job, beginning) for text in texts]


def _shortened(text: Text, job: ScoreJob, beginning: Callable[[str, int], str]) -> Text:
    *before, last = list(text.content)
    messages = [
        message
        if limit is None or not isinstance(message, Mapping)
        else {**message, "content": beginning(str(message["content"]), limit)}
        for message, limit in [*((one, job.max_prompt_tokens) for one in before), (last, job.max_answer_tokens)]
    ]
    content = tuple(messages)
    return replace(text, content=content, truncated=content != text.content)  # type: ignore[arg-type]
