"""What trainers send: OpenRLHF's /get_reward, LLaMA-Factory's /v1/score/evaluation, ms-swift's chat."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from qserve.wire.openai import NonEmptyString, OnlyFalse, OnlyOne, TextFormat
from qserve.wire.reward.fields import Conversation, RewardFields, ScoredStrings, ScoredTexts, num_texts

__all__ = ["ChatRequest", "GetRewardRequest", "ScoreEvaluationRequest"]


class GetRewardRequest(RewardFields):
    """POST /get_reward of OpenRLHF: templated texts. The rest is for other reward functions."""

    query: ScoredTexts
    prompts: Any = Field(None, description="where rules or judges read the answer: what of the query is the prompt")
    labels: Any = Field(None, description="references, where rules or judges compare with one; else harmless")

    def num_texts(self) -> int:
        return num_texts(self.query)


class ScoreEvaluationRequest(RewardFields):
    """POST /v1/score/evaluation of LLaMA-Factory, whose PPO trainer sends the model name "model"."""

    messages: ScoredStrings
    max_length: int | None = Field(None, ge=1)

    def num_texts(self) -> int:
        return len(self.messages)


class ChatRequest(RewardFields):
    """POST /v1/chat/completions on a reward model, as ms-swift deploys it: the answer's content is the reward.

    How to sample is of no meaning where nothing is generated; these fields are taken and not used.
    """

    model: NonEmptyString
    messages: Conversation
    stream: OnlyFalse = False
    n: OnlyOne = 1
    max_tokens: int | None = Field(None, description="harmless: nothing is generated")
    max_completion_tokens: int | None = Field(None, description="harmless: nothing is generated")
    temperature: float | None = Field(None, description="harmless: nothing is generated")
    top_p: float | None = Field(None, description="harmless: nothing is generated")
    top_k: int | None = Field(None, description="harmless: nothing is generated")
    repetition_penalty: float | None = Field(None, description="harmless: nothing is generated")
    seed: int | None = Field(None, description="harmless: nothing is generated")
    stop: str | list[str] | None = Field(None, description="harmless: nothing is generated")
    metadata: dict[str, str] | None = Field(None, description="harmless: taken and not used")
    response_format: TextFormat | None = None

    def num_texts(self) -> int:
        return 1
