"""Structured outputs: OpenAI's `response_format`, vLLM's `structured_outputs`, and its older `guided_*`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.schema import Wire

__all__ = ["GUIDED", "Choices", "Pattern", "ResponseFormat", "StructuredOutputs", "TextFormat", "structure_of"]

GUIDED: Mapping[str, str] = {f"guided_{kind}": kind for kind in ("json", "regex", "choice", "grammar")}
"""Older names of the fields of `structured_outputs`, which vLLM itself read until 0.11."""

MAX_CHOICES = 1024
MAX_GRAMMAR_CHARS = 64 * 1024

Pattern = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]


class TextFormat(Wire):
    """`response_format`: any text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """`response_format`: any JSON object."""

    type: Literal["json_object"]
    value: dict[str, JsonValue] | str | None = Field(None, description="Hugging Face's: a schema of it")


class JsonFormat(Wire):
    """`response_format`: JSON of this schema, as Hugging Face's clients have it."""

    type: Literal["json"]
    value: dict[str, JsonValue] | str


class RegexFormat(Wire):
    """`response_format`: text of this pattern, as Hugging Face's clients have it."""

    type: Literal["regex"]
    value: Pattern


class NamedSchema(Wire):
    """A JSON schema as OpenAI wraps it."""

    name: str
    description: str | None = Field(None, description="harmless: describe the format in a message")
    json_schema: dict[str, JsonValue] | None = Field(None, alias="schema", description="absent: any JSON object")
    strict: bool | None = Field(None, description="harmless: answers always follow the schema")


class JsonSchemaFormat(Wire):
    """`response_format`: JSON of this schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | JsonFormat | RegexFormat, Field(discriminator="type")
]


def structure_of(response_format: ResponseFormat | None) -> StructuredOutputs | None:
    """The same in vLLM's words; None: any text."""
    if response_format is None or isinstance(response_format, TextFormat):
        return None
    if isinstance(response_format, RegexFormat):
        return StructuredOutputs.model_validate({"regex": response_format.value})
    if isinstance(response_format, JsonSchemaFormat):
        schema: Any = response_format.json_schema.json_schema
    else:
        schema = response_format.value
    return StructuredOutputs.model_validate({"json_object": True} if schema is None else {"json": schema})


class StructuredOutputs(Wire):
    """vLLM's: exactly one of the kinds."""

    json_schema: dict[str, JsonValue] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = Field(None, description="Lark, or EBNF as llama.cpp writes it")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("json_schema", "json_object", "regex", "choice", "grammar") if getattr(self, name)]
        if len(given) > 1 or (not given and self.json_schema is None):
            raise PydanticCustomError(
                "structured_outputs", "'structured_outputs' takes one of json, json_object, regex, choice, grammar"
            )
        if isinstance(self.json_schema, str):
            _schema_of(self.json_schema)
        return self

    @property
    def schema_object(self) -> dict[str, Any] | None:
        """The JSON schema, if it is one."""
        return _schema_of(self.json_schema) if isinstance(self.json_schema, str) else self.json_schema


def _schema_of(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PydanticCustomError("json", "'structured_outputs.json' must be a JSON schema, an object")
    return value
