"""The table of reward protocols: request formats that a reward model answers, whatever runs it.

The gateway makes its routes of the rows, `/openapi.json` its answers, and the reward worker finds the function that is
marked with the schema of a row (`reward/protocols/job.py: job_of`). To add a protocol: its schema in a module of this
folder, a row here, its function in a module of `reward/protocols/`, and its route and fields in docs/api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qserve.wire.errors import Dialect
from qserve.wire.reward.classifiers import ClassifyRequest, EmbeddingRequest, PoolingRequest, PredictRequest
from qserve.wire.reward.fields import RewardFields
from qserve.wire.reward.native import RewardRequest
from qserve.wire.reward.rankers import RerankRequest, ScoreRequest
from qserve.wire.reward.trainers import ChatRequest, GetRewardRequest, ScoreEvaluationRequest
from qserve.wire.reward.vectors import VectorRequest

__all__ = ["BY_PATH", "OF_VECTORS", "PROTOCOLS", "RewardProtocol"]


@dataclass(frozen=True)
class RewardProtocol:
    """One format of requests. All of them are POST.

    Attributes:
        request: the schema of the bodies, with the rules between fields.
        paths: each path with its summary; at a path that chat models answer too, the end of that route's own summary.
        response: JSON Schema of the answers. Most are objects of another server's format, which has no schema.
        dialect: whose shape the errors have.
        names_model: whether `model` in the body names a served model; some clients always send a constant.
    """

    request: type[RewardFields]
    paths: Mapping[str, str]
    response: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    dialect: Dialect = Dialect.OPENAI
    names_model: bool = True


# A list for SGLang's and text-embeddings-inference's requests, an object for others.
_OBJECT_OR_LIST = {"type": ["object", "array"]}

PROTOCOLS = (
    RewardProtocol(
        RewardRequest, {"/v1/reward": "Rewards of answers, their ranking, margins of pairs, steps of a solution."}
    ),
    RewardProtocol(GetRewardRequest, {"/get_reward": "OpenRLHF's remote reward model."}),
    RewardProtocol(ClassifyRequest, {"/classify": "vLLM's, or with `text` SGLang's."}, _OBJECT_OR_LIST),
    RewardProtocol(PoolingRequest, {"/pooling": "vLLM's, of whole texts or of each token."}),
    RewardProtocol(ScoreRequest, {"/score": "vLLM's: documents as answers to queries.", "/v1/score": "The same."}),
    RewardProtocol(
        RerankRequest,
        {
            "/rerank": "vLLM's, or with `texts` text-embeddings-inference's.",
            "/v1/rerank": "The same.",
            "/v2/rerank": "The same.",
        },
        _OBJECT_OR_LIST,
    ),
    RewardProtocol(EmbeddingRequest, {"/v1/embeddings": "vectors of one number."}),
    RewardProtocol(
        PredictRequest,
        {"/predict": "text-embeddings-inference's.", "/": "The same, at the path of its clients."},
        _OBJECT_OR_LIST,
        Dialect.TEI,
    ),
    RewardProtocol(ChatRequest, {"/v1/chat/completions": "its reward."}),
    RewardProtocol(
        ScoreEvaluationRequest, {"/v1/score/evaluation": "LLaMA-Factory's reward server."}, names_model=False
    ),
)

BY_PATH: Mapping[str, RewardProtocol] = {path: one for one in PROTOCOLS for path in one.paths}
OF_VECTORS: Mapping[str, RewardProtocol] = {
    "/v1/embeddings": RewardProtocol(VectorRequest, {"/v1/embeddings": "of whole texts, as OpenAI has it."})
}
"""What an embedding model answers, by path: it is run as a reward model, and its vectors are no rewards."""
