"""Reads answers as vLLM's own response models do: {"name", "request", "answer"} a line on standard input.

Prints a line for each: the fields that vLLM's models do not have. A request or answer that they refuse ends it.
"""

from __future__ import annotations

import json
import sys

from pydantic import TypeAdapter
from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest, ClassificationResponse
from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest, PoolingResponse
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, RerankResponse, ScoreRequest, ScoreResponse

MODELS = {
    "classify": (ClassificationRequest, ClassificationResponse),
    "pooling": (PoolingRequest, PoolingResponse),
    "score": (ScoreRequest, ScoreResponse),
    "rerank": (RerankRequest, RerankResponse),
}

for line in sys.stdin:
    case = json.loads(line)
    request, response = MODELS[case["name"]]
    TypeAdapter(request).validate_python(case["request"])
    answer = response.model_validate(case["answer"])
    print(json.dumps(sorted(set(case["answer"]) - set(type(answer).model_fields))))
