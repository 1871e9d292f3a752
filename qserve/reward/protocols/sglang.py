"""SGLang's own POST /classify, told from vLLM's by `text` or `input_ids`: the reward as an embedding of one number."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from qserve.reward.protocols.job import ModelInfo, Scored, ScoreJob, texts_of_input
from qserve.wire.errors import ApiError
from qserve.wire.reward.classifiers import ClassifyRequest
from qserve.wire.reward.fields import as_list, num_texts

__all__ = ["classify"]


def classify(request: ClassifyRequest, about: ModelInfo) -> ScoreJob:
    """A list for a list of texts, one object for one text, as SGLang does."""
    value = request.text if request.text is not None else request.input_ids
    where = "text" if request.text is not None else "input_ids"
    texts = texts_of_input(value, where)
    is_single = not isinstance(value, list) or isinstance(value[0], int)
    names = as_list(request.rid) or [uuid4().hex for _ in texts]
    if len(names) != num_texts(value):
        raise ApiError(400, f"'rid' has {len(names)} ids for {len(texts)} texts", "invalid_value", "rid")

    def answer(scored: Scored) -> Any:
        answers = [
            {
                "embedding": about.values(one, raw=True),
                "meta_info": {
                    "id": name,
                    "prompt_tokens": one.num_tokens,
                    "e2e_latency": scored.latency_ms / 1e3,
                    "qserve": dict(scored.meta),
                },
            }
            for name, one in zip(names, scored.scores, strict=True)
        ]
        return answers[0] if is_single else answers

    return ScoreJob(texts, answer)
