"""What classifiers and embedders are asked: /classify and /pooling, /v1/embeddings, /predict."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.openai import OnlyFalse, OnlyOne, TokenIds
from qserve.wire.reward.fields import (
    ACTIVATION_SCHEMA,
    STRING_OR_LIST,
    Conversation,
    Input,
    RewardFields,
    ScoredTexts,
    Strings,
    VllmFields,
    num_texts,
    one_of,
    refuse,
)
from qserve.wire.schema_rules import absent, given, one_of_these, together

__all__ = ["ClassifyRequest", "EmbeddingRequest", "PoolingRequest", "PredictRequest"]


_SGLANG_HAS_NOT = ("use_activation", "activation", "truncate_prompt_tokens")
_CLASSIFY_SCHEMA: dict[str, Any] = {
    "allOf": [ACTIVATION_SCHEMA],
    "oneOf": [
        together(given(input=STRING_OR_LIST), absent("messages", "text", "input_ids", "rid")),
        together(given(messages="array"), absent("input", "text", "input_ids", "rid")),
        together(given(text=STRING_OR_LIST), absent("input", "messages", "input_ids", *_SGLANG_HAS_NOT)),
        together(given(input_ids="array"), absent("input", "messages", "text", *_SGLANG_HAS_NOT)),
    ],
}
_POOLING_SCHEMA: dict[str, Any] = {"allOf": [ACTIVATION_SCHEMA], **one_of_these(input=STRING_OR_LIST, messages="array")}
_PREDICT_INPUTS: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 2},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 2},
        },
    ]
}


class ClassifyRequest(VllmFields):
    """POST /classify: vLLM's (`input` or `messages`), and SGLang's (`text` or `input_ids`)."""

    model_config = ConfigDict(json_schema_extra=_CLASSIFY_SCHEMA)

    input: Input | None = None
    messages: Conversation | None = None
    add_generation_prompt: OnlyFalse | None = None
    text: ScoredTexts | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)] | None = None
    rid: str | Strings | None = Field(None, description="SGLang's name of the request; comes back in meta_info")

    @model_validator(mode="after")
    def _check(self) -> Self:
        what = one_of(self, "input", "messages", "text", "input_ids")
        if what in ("text", "input_ids"):
            refuse(self, "SGLang's /classify", *_SGLANG_HAS_NOT)
        elif self.rid is not None:
            raise PydanticCustomError("rid", "'rid' belongs to SGLang's /classify, with 'text' or 'input_ids'")
        return self

    @property
    def is_sglang(self) -> bool:
        return self.text is not None or self.input_ids is not None

    def num_texts(self) -> int:
        return 1 if self.messages is not None else num_texts(self.input or self.text or self.input_ids)


class PoolingRequest(VllmFields):
    """POST /pooling: the reward of each text, or with `token_classify` the head's value at each of its tokens."""

    model_config = ConfigDict(json_schema_extra=_POOLING_SCHEMA)

    input: Input | None = None
    messages: Conversation | None = None
    add_generation_prompt: OnlyFalse | None = None
    task: Literal["classify", "token_classify"] | None = None
    encoding_format: Literal["float"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        one_of(self, "input", "messages")
        return self

    def num_texts(self) -> int:
        return 1 if self.messages is not None else num_texts(self.input)


class EmbeddingRequest(RewardFields):
    """POST /v1/embeddings: the reward as a vector of one number, which is how verl asks an SGLang server for it."""

    input: Input
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: OnlyOne | None = None

    def num_texts(self) -> int:
        return num_texts(self.input)


class PredictRequest(RewardFields):
    """POST /predict of text-embeddings-inference: one text, a pair of strings, or a batch of lists of one or two."""

    inputs: Annotated[
        str | Strings | Annotated[list[Strings], Field(min_length=1, fail_fast=True)], WithJsonSchema(_PREDICT_INPUTS)
    ]
    parameters: Annotated[dict[str, Any], Field(max_length=0)] | None = None
    raw_scores: bool = False
    truncate: bool = False
    truncation_direction: Literal["left", "right", "Left", "Right"] = "Right"

    @model_validator(mode="after")
    def _check(self) -> Self:
        for one in self.batch():
            if len(one) > 2:
                raise PydanticCustomError("inputs", "a text is one string or a pair of them; 'inputs' has more")
        return self

    def batch(self) -> list[list[str]]:
        """Each text as a list of one string or two."""
        if isinstance(self.inputs, str):
            return [[self.inputs]]
        lists = self.inputs if self.is_batch else [self.inputs]
        return [[str(part) for part in one] for one in lists]

    @property
    def is_batch(self) -> bool:
        return isinstance(self.inputs, list) and isinstance(self.inputs[0], list)

    def num_texts(self) -> int:
        return len(self.batch())
