"""Request schemas of reward models, one pydantic model per path.

Paths that two systems share have one model with the fields of both (`/classify`, `/rerank`), told apart by the field
that only one of them has. Read from public source: vLLM 0.32 `entrypoints/pooling`, SGLang `EmbeddingReqInput`,
text-embeddings-inference `router/src/http/types.rs`, OpenRLHF `utils/remote_rm_utils.py`, verl `reward_loop.py`,
LLaMA-Factory `api/protocol.py`, ms-swift's deployed reward models.

messages.py       turns
fields.py         what several of them share
native.py         /v1/reward
classifiers.py    /classify, /pooling, /v1/embeddings, /predict
rankers.py        /score, /rerank
trainers.py       /get_reward, /v1/score/evaluation, /v1/chat/completions
rules.py          rules between fields, as JSON Schema
"""

from qserve.wire.reward.classifiers import ClassifyRequest, EmbeddingRequest, PoolingRequest, PredictRequest
from qserve.wire.reward.fields import BULK_SLOTS, MAX_TEXTS, as_list, num_slots, num_texts
from qserve.wire.reward.messages import ScoredMessage
from qserve.wire.reward.native import ConversationObject, Normalization, PreferencePair, RewardRequest
from qserve.wire.reward.rankers import RerankRequest, ScoreRequest
from qserve.wire.reward.trainers import ChatRequest, GetRewardRequest, ScoreEvaluationRequest

__all__ = [
    "BULK_SLOTS",
    "MAX_TEXTS",
    "ChatRequest",
    "ClassifyRequest",
    "ConversationObject",
    "EmbeddingRequest",
    "GetRewardRequest",
    "Normalization",
    "PoolingRequest",
    "PredictRequest",
    "PreferencePair",
    "RerankRequest",
    "RewardRequest",
    "ScoreEvaluationRequest",
    "ScoreRequest",
    "ScoredMessage",
    "as_list",
    "num_slots",
    "num_texts",
]
