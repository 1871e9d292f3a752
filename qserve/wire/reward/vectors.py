"""What an embedding model is asked: /v1/embeddings as OpenAI has it, with a prompt or an instruction beside it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.openai import NonEmptyString
from qserve.wire.reward.fields import Input, RewardFields, num_texts
from qserve.wire.schema_rules import absent

__all__ = ["MAX_INPUTS", "VectorRequest"]

MAX_INPUTS = 2048
"""Texts of one request, as with OpenAI: a vector takes a hundred times the place of a reward."""
_ONE_PROMPT: dict[str, Any] = {"anyOf": [absent("prompt_name"), absent("instruction")]}


class VectorRequest(RewardFields):
    """POST /v1/embeddings of an embedding model."""

    model_config = ConfigDict(json_schema_extra=_ONE_PROMPT)

    input: Input = Field(description=f"a text, token ids, or a list of either: {MAX_INPUTS} at most")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(
        None, ge=1, description="the first so many numbers of each vector, normalized again where the model's are"
    )
    prompt_name: NonEmptyString | None = Field(
        None, description="one of the model's prompts (config_sentence_transformers.json), written before each text"
    )
    instruction: NonEmptyString | None = Field(
        None, description="the task, of a model that takes one: 'Instruct: …' is written before each text"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (count := self.num_texts()) > MAX_INPUTS:
            raise PydanticCustomError(
                "too_many_texts", f"'input' has {count} texts and may have {MAX_INPUTS}; send several requests"
            )
        if self.prompt_name is not None and self.instruction is not None:
            raise PydanticCustomError("one_of", "give one of 'prompt_name', 'instruction'; this request has both")
        return self

    def num_texts(self) -> int:
        return num_texts(self.input)
