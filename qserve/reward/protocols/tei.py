"""text-embeddings-inference on a classifier: POST /predict, and POST /rerank told from vLLM's by `texts`.

Its answers are lists, which have no field for `meta`: a header holds it. A pair of strings is a prompt
and its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from qserve.reward.protocols.job import Content, ModelInfo, Scored, ScoreJob, Text, answered, job_of
from qserve.reward.protocols.vllm import LABEL, query_texts, token_limits
from qserve.reward.settings import Truncation
from qserve.wire.errors import ApiError
from qserve.wire.reward.classifiers import PredictRequest
from qserve.wire.reward.rankers import RerankRequest

__all__ = ["predict", "rerank"]


@job_of(PredictRequest)
def predict(request: PredictRequest, about: ModelInfo) -> ScoreJob:
    """One prediction in a list, or of a batch a list of such lists. `raw_scores` leaves the sigmoid out."""
    named = [(one, f"inputs.{index}" if request.is_batch else "inputs") for index, one in enumerate(request.batch())]
    texts = tuple(Text(_content(one, name), name) for one, name in named)
    labels = about.labels or (LABEL,)

    def answer(scored: Scored) -> list[Any]:
        rows = [_predictions(about.values(one, request.raw_scores), labels) for one in scored.scores]
        return rows if request.is_batch else rows[0]

    return ScoreJob(texts, answer, _side(request.truncate, request.truncation_direction))


def rerank(request: RerankRequest, about: ModelInfo) -> ScoreJob:
    """Best first."""
    texts = request.document_texts()
    activate = about.activation(bool(request.raw_scores))

    def answer(scored: Scored) -> list[dict[str, Any]]:
        order = sorted(range(len(texts)), key=lambda index: -scored.rewards[index])
        rows: list[dict[str, Any]] = [{"index": index, "score": activate(scored.rewards[index])} for index in order]
        return [{**row, "text": texts[row["index"]]} for row in rows] if request.return_text else rows

    side = _side(bool(request.truncate), request.truncation_direction or "Right")
    return ScoreJob(query_texts(request.query_text(), texts, "texts"), answer, side, None, *token_limits(request))


def _predictions(values: list[float], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Best first, as text-embeddings-inference sorts them."""
    pairs = sorted(zip(values, labels, strict=True), key=lambda pair: -pair[0])
    return [{"score": value, "label": label} for value, label in pairs]


def _content(parts: list[str], where: str) -> Content:
    if len(parts) == 2:
        return answered(parts[0], parts[1], where)
    if not parts[0]:
        raise ApiError(400, f"'{where}' is an empty text; there is nothing to score", "empty_input", where)
    return parts[0]


def _side(truncate: bool, direction: Literal["left", "right", "Left", "Right"]) -> Truncation | None:
    if not truncate:
        return None
    return "left" if direction.lower() == "left" else "right"
